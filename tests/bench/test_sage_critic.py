"""The bench of SAGE's critic reads plans and scores as it says."""

from __future__ import annotations

import numpy as np
import pytest
from sage_critic import gain_of_choice, ones_of, skill


@pytest.mark.parametrize(
    ("plan", "ones"), [("10 2 100 20", "10 2"), ("10 20", "10"), ("7 100 30", "7"), ("0 10", "0"), ("", "")]
)
def test_a_plans_ones_are_the_words_of_its_first_sum(plan: str, ones: str) -> None:
    assert ones_of(plan) == ones


def test_the_skill_is_0_for_the_best_constant_and_the_explained_share_for_the_best_forecast_of_a_class() -> None:
    # One problem, one round, four plans: score, outcome, ones right, plan right.
    rows = np.array([[[[0.5, 1, 1, 1], [0.5, 1, 1, 1], [0.5, 0, 1, 0], [0.5, 0, 0, 0]]]])
    assert skill(rows) == 0
    # Ones right: 2 of 3 succeed, residual 2/3 of a row; in all 4 rows the constant leaves 1. Plan right: no residual.
    assert skill(rows, 2) == pytest.approx(1 / 3)
    assert skill(rows, 3) == 1


def test_the_gain_of_a_choice_is_that_of_the_first_best_scored_plan() -> None:
    rows = np.array([[[[0.2, 0, 0, 0], [0.9, 1, 1, 1], [0.9, 0, 1, 0], [0.1, 0, 0, 0]]]])
    assert gain_of_choice(rows) == pytest.approx(0.75)
