"""Confidence intervals at 95 %, and coefficients of loss terms that follow a measured KL divergence or entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
..._low, ..._high | as the metric | bounds of the 95 % interval of an evaluation metric: Wilson's for shares, else
    the normal approximation
"""

_Z = NormalDist().inv_cdf(0.975)
"""Quantile of the standard normal distribution for two-sided intervals at 95 %."""


Interval = tuple[float, float, float]
"""Confidence interval at 95 % of a mean: lower bound, mean, upper bound."""


def confidence_interval(values: Sequence[float]) -> Interval:
    """Return the confidence interval of the mean of `values` at 95 %.

    Wilson's interval is used if all values are 0 or 1, and the normal approximation otherwise.
    """
    is_binary = set(values) <= {0.0, 1.0}
    return wilson_interval(values.count(1.0), len(values)) if is_binary else normal_interval(values)


def normal_interval(values: Sequence[float]) -> Interval:
    """Return the interval of the mean of `values` by the normal approximation. A single value has infinite bounds."""
    mean, n = fmean(values), len(values)
    half = _Z * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean - half, mean, mean + half


def student_t_interval(values: Sequence[float]) -> Interval:
    """Return the interval of the mean of few `values` by Student's t distribution (Student 1908).

    A single value has infinite bounds.
    """
    # The import of `scipy.stats` would take three times as long as that of `scipy.special`.
    from scipy.special import stdtrit

    mean, n = fmean(values), len(values)
    half = float(stdtrit(n - 1, 0.975)) * stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean - half, mean, mean + half


def wilson_interval(success_count: float, trial_count: int) -> Interval:
    """Return the interval of a success rate with `success_count` successes in `trial_count` trials (Wilson 1927)."""
    rate = success_count / trial_count
    centre = (rate + _Z**2 / (2 * trial_count)) / (1 + _Z**2 / trial_count)
    half = _Z * math.sqrt(rate * (1 - rate) / trial_count + _Z**2 / (4 * trial_count**2)) / (1 + _Z**2 / trial_count)
    return centre - half, rate, centre + half


def difference_interval(before: Interval, after: Interval) -> Interval:
    """Return the interval of the difference `after - before` of two independent means, from the interval of each.

    The bounds are combined by the method of variance estimates recovery (Zou and Donner 2008). For Wilson's intervals
    of two shares it is method 10 of Newcombe (1998).
    """
    (low, mean, high), (new_low, new_mean, new_high) = before, after
    difference = new_mean - mean
    return (
        difference - math.hypot(new_mean - new_low, high - mean),
        difference,
        difference + math.hypot(new_high - new_mean, mean - low),
    )


def paired_bootstrap_interval(
    baseline_values: Sequence[float],
    new_values: Sequence[float],
    *,
    seed: int = 0,
    resamples: int = 10_000,
    confidence: float = 0.95,
) -> Interval:
    """Return the interval of the mean of `new_values - baseline_values` by the percentile bootstrap (Efron 1979).

    Resampling draws pairs. So a common cause of both values, such as the difficulty of a problem, does not widen the
    interval. A single pair has infinite bounds.

    Raises:
        ValueError: if there are no pairs, or `baseline_values` and `new_values` differ in length.
    """
    import numpy as np

    if len(baseline_values) != len(new_values) or not baseline_values:
        raise ValueError(
            f"pairs: {len(baseline_values)} values before and {len(new_values)} after; both must have as many, not 0"
        )
    gains = np.asarray(new_values, dtype=np.float64) - np.asarray(baseline_values, dtype=np.float64)
    if len(gains) == 1:
        return -math.inf, float(gains[0]), math.inf
    rng = np.random.default_rng(seed)
    # Resamples are drawn one at a time, so that memory does not grow with their number.
    means = [gains[rng.integers(len(gains), size=len(gains))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, ((1 - confidence) / 2, (1 + confidence) / 2))
    return float(low), float(gains.mean()), float(high)


def adapted_kl_coefficient(
    coefficient: float, measured_kl: float, target_kl: float, sample_count: int, horizon_samples: int = 10_000
) -> float:
    """Return the next coefficient of a KL penalty, higher if `measured_kl` (nats) exceeds `target_kl`, else lower.

    The relative change is at most 0.2 `sample_count / horizon_samples` (Ziegler et al., 1909.08593). `sample_count` is
    the number of samples since the last change.
    """
    error = min(max(measured_kl / target_kl - 1, -0.2), 0.2)
    return coefficient * (1 + error * sample_count / horizon_samples)


def adapted_entropy_coefficient(
    coefficient: float,
    measured_entropy: float,
    target_entropy: float,
    step: float = 0.005,
    minimum: float = 0.0,
    maximum: float = 1.0,
) -> float:
    """Return the next coefficient of an entropy bonus in [`minimum`, `maximum`] (Skywork-OR1, 2505.22312).

    The coefficient falls by `step` if `measured_entropy` (nats per token) exceeds `target_entropy`, and rises by `step`
    otherwise. TRL differs: it pays the bonus only in updates after a measurement at or below the target.
    """
    updated = coefficient + step if measured_entropy <= target_entropy else coefficient - step
    return min(max(updated, minimum), maximum)
