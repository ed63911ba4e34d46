"""Equilibrium of a zero-sum game in which both players choose once (`marl.zero_sum`)."""

from marl.zero_sum import Equilibrium, Mixture, nash

__all__ = ["Equilibrium", "Mixture", "nash"]
