"""Intervals at 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

_Z = NormalDist().inv_cdf(0.975)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower bound, mean and upper bound: Wilson's where every value is 0 or 1, else the normal approximation."""
    if all(value in (0.0, 1.0) for value in values):
        return wilson(sum(value == 1.0 for value in values), len(values))
    return normal(values)


def normal(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower bound, mean and upper bound, by the normal approximation; unbounded with a single value."""
    mean, n = fmean(values), len(values)
    half = _Z * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean - half, mean, mean + half


def wilson(hits: int, n: int) -> tuple[float, float, float]:
    """Lower bound, rate and upper bound of a proportion (Wilson 1927)."""
    rate = hits / n
    centre = (rate + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return centre - half, rate, centre + half
