"""Coefficients that follow a measurement."""

from __future__ import annotations


def adapted_kl(beta: float, kl: float, target: float, n: int, horizon: int = 10_000) -> float:
    """The next coefficient of a KL penalty: up if the measured KL (nats) was over target, down if under.

    By at most a fifth of `n / horizon` at a time, n samples having been seen (Ziegler et al. 2019, 1909.08593).
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return beta * (1 + error * n / horizon)


def adapted_entropy(
    coefficient: float, entropy: float, target: float, step: float = 0.005, low: float = 0.0, high: float = 1.0
) -> float:
    """The next coefficient of an entropy bonus: a step up if the measured entropy (nats a token) was not over target.

    A step down otherwise, between `low` and `high` (Skywork-OR1, 2505.22312). TRL gives the bonus only in updates after
    a measurement that was not over target.
    """
    moved = coefficient + step if entropy <= target else coefficient - step
    return min(max(moved, low), high)
