"""Coefficients that follow a measurement, against verl and TRL; the bootstrap, against scipy and the normal case."""

import math
import random
from statistics import NormalDist

import pytest

from marl.core.statistics import adapted_entropy_coefficient, adapted_kl_coefficient, paired_bootstrap_interval


def test_the_kl_coefficient_moves_as_in_verl():
    verl = pytest.importorskip("verl.trainer.ppo.core_algos")
    theirs, beta = verl.AdaptiveKLController(0.1, 0.05, 1000), 0.1
    for kl, n in [(0.05, 64), (0.2, 64), (0.0, 32), (0.055, 8), (5.0, 400), (-0.1, 64)]:
        theirs.update(kl, n)
        beta = adapted_kl_coefficient(beta, kl, 0.05, n, 1000)
        assert beta == pytest.approx(theirs.value, rel=1e-12)
    assert adapted_kl_coefficient(0.1, 0.05, 0.05, 64) == 0.1


def test_the_entropy_coefficient_moves_a_step_and_stays_within_bounds():
    assert adapted_entropy_coefficient(0.01, measured_entropy=0.1, target_entropy=0.2) == pytest.approx(0.015)
    assert adapted_entropy_coefficient(0.01, measured_entropy=0.2, target_entropy=0.2) == pytest.approx(0.015)
    assert adapted_entropy_coefficient(0.01, measured_entropy=0.3, target_entropy=0.2) == pytest.approx(0.005)
    assert adapted_entropy_coefficient(0.002, measured_entropy=0.3, target_entropy=0.2) == 0.0
    assert (
        adapted_entropy_coefficient(0.06, measured_entropy=0.0, target_entropy=0.2, step=0.1, minimum=0.05, maximum=0.1)
        == 0.1
    )
    assert (
        adapted_entropy_coefficient(0.06, measured_entropy=1.0, target_entropy=0.2, step=0.1, minimum=0.05, maximum=0.1)
        == 0.05
    )


def test_the_bootstrap_of_normal_differences_gives_the_normal_interval():
    rng = random.Random(0)
    hardness = [rng.gauss(0, 50) for _ in range(400)]  # in common, so it must not widen the interval
    gains = [NormalDist(0.3, 2).inv_cdf((i + 0.5) / 400) for i in range(400)]
    low, mean, high = paired_bootstrap_interval(hardness, [h + g for h, g in zip(hardness, gains, strict=True)])
    assert mean == pytest.approx(0.3, abs=1e-9)
    assert (low, high) == pytest.approx((0.3 - 1.96 * 2 / 20, 0.3 + 1.96 * 2 / 20), abs=0.01)


def test_the_bootstrap_agrees_with_scipy_on_a_skewed_sample_and_repeats_itself():
    stats = pytest.importorskip("scipy.stats")
    before, after = [0.0] * 60, [float(i % 7 == 0) * (1 + i % 3) for i in range(60)]
    theirs = stats.bootstrap((after,), lambda x, axis: x.mean(axis), method="percentile", n_resamples=20_000, rng=0)
    low, _, high = paired_bootstrap_interval(before, after, resamples=20_000)
    assert (low, high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)
    assert paired_bootstrap_interval(before, after, seed=3) == paired_bootstrap_interval(before, after, seed=3)


def test_one_pair_has_no_bounds_and_none_is_an_error():
    assert paired_bootstrap_interval([0.25], [1.0]) == (-math.inf, 0.75, math.inf)
    with pytest.raises(ValueError, match="0 values before and 0 after"):
        paired_bootstrap_interval([], [])
