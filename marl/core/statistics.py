"""Confidence intervals at 95 %, and coefficients that are adapted to a measured KL divergence or entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

_Z = NormalDist().inv_cdf(0.975)
"""Quantile of the standard normal distribution for two-sided intervals at 95 %."""


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower bound, mean and upper bound by Wilson's interval if all values are 0 or 1, else by `normal`."""
    if all(value in (0.0, 1.0) for value in values):
        return wilson(sum(value == 1.0 for value in values), len(values))
    return normal(values)


def normal(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower bound, mean and upper bound by the normal approximation. A single value has infinite bounds."""
    mean, n = fmean(values), len(values)
    half = _Z * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean - half, mean, mean + half


def student(values: Sequence[float]) -> tuple[float, float, float]:
    """Return lower bound, mean and upper bound by Student's t distribution (Student 1908), for small samples.

    A single value has infinite bounds.
    """
    # Not `scipy.stats`, whose import takes three times as long.
    from scipy.special import stdtrit

    mean, n = fmean(values), len(values)
    half = float(stdtrit(n - 1, 0.975)) * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean - half, mean, mean + half


def wilson(hits: float, n: int) -> tuple[float, float, float]:
    """Return lower bound, rate and upper bound of a proportion with `hits` of `n` (Wilson 1927)."""
    rate = hits / n
    centre = (rate + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return centre - half, rate, centre + half


def paired_bootstrap(
    before: Sequence[float], after: Sequence[float], *, seed: int = 0, resamples: int = 10_000
) -> tuple[float, float, float]:
    """Return lower bound, mean and upper bound of `after - before` by the percentile bootstrap (Efron 1979).

    Resampling draws pairs, so a common cause of both values, such as the difficulty of a problem, does not widen the
    interval. A single pair has infinite bounds.

    Raises:
        ValueError: if there are no pairs, or `before` and `after` differ in length.
    """
    import numpy as np

    if len(before) != len(after) or not before:
        raise ValueError(f"pairs: {len(before)} values before and {len(after)} after; both must have as many, not 0")
    gains = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    if len(gains) == 1:
        return -math.inf, float(gains[0]), math.inf
    rng = np.random.default_rng(seed)
    # One resample at a time, so that memory does not grow with their number.
    means = [gains[rng.integers(len(gains), size=len(gains))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(gains.mean()), float(high)


def adapted_kl(beta: float, kl: float, target: float, n: int, horizon: int = 10_000) -> float:
    """Return the next coefficient of a KL penalty, higher if the measured `kl` (nats) exceeds `target`, else lower.

    The relative change is at most 0.2 `n / horizon`, with `n` samples since the last change (Ziegler et al.,
    1909.08593).
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return beta * (1 + error * n / horizon)


def adapted_entropy(
    coefficient: float, entropy: float, target: float, step: float = 0.005, low: float = 0.0, high: float = 1.0
) -> float:
    """Return the next coefficient of an entropy bonus in [`low`, `high`] (Skywork-OR1, 2505.22312).

    The coefficient falls by `step` if `entropy` (nats per token) exceeds `target`, and rises by `step` otherwise. TRL
    differs: it pays the bonus only in updates after a measurement at or below the target.
    """
    updated = coefficient + step if entropy <= target else coefficient - step
    return min(max(updated, low), high)
