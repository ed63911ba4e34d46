"""Coefficients that follow a measurement, against verl and TRL."""

import pytest

from marl.statistics import adapted_entropy, adapted_kl


def test_the_kl_coefficient_moves_as_in_verl():
    verl = pytest.importorskip("verl.trainer.ppo.core_algos")
    theirs, beta = verl.AdaptiveKLController(0.1, 0.05, 1000), 0.1
    for kl, n in [(0.05, 64), (0.2, 64), (0.0, 32), (0.055, 8), (5.0, 400), (-0.1, 64)]:
        theirs.update(kl, n)
        beta = adapted_kl(beta, kl, 0.05, n, 1000)
        assert beta == pytest.approx(theirs.value, rel=1e-12)
    assert adapted_kl(0.1, 0.05, 0.05, 64) == 0.1


def test_the_entropy_coefficient_moves_a_step_and_stays_within_bounds():
    assert adapted_entropy(0.01, entropy=0.1, target=0.2) == pytest.approx(0.015)
    assert adapted_entropy(0.01, entropy=0.2, target=0.2) == pytest.approx(0.015)
    assert adapted_entropy(0.01, entropy=0.3, target=0.2) == pytest.approx(0.005)
    assert adapted_entropy(0.002, entropy=0.3, target=0.2) == 0.0
    assert adapted_entropy(0.06, entropy=0.0, target=0.2, step=0.1, low=0.05, high=0.1) == 0.1
    assert adapted_entropy(0.06, entropy=1.0, target=0.2, step=0.1, low=0.05, high=0.1) == 0.05
