"""Equilibrium of a zero-sum game in which both players choose once (`marl.zero_sum`)."""

from marl.zero_sum import MatrixEquilibrium, Mixture, nash

__all__ = ["MatrixEquilibrium", "Mixture", "nash"]
