"""Equilibria of matrices: known answers, and NashConv 0 by OpenSpiel's own best responses."""

from __future__ import annotations

import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms.exploitability import nash_conv
from open_spiel.python.policy import TabularPolicy

from marl.core.zero_sum import nash_equilibrium

CLOSE = 1e-9


@pytest.mark.parametrize(
    ("payoffs", "row", "column", "value"),
    [
        ([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], [1 / 3] * 3, [1 / 3] * 3, 0),
        # Rock beats scissors twice as high: each is played as often as the pair in which it is missing pays.
        ([[0, -1, 2], [1, 0, -1], [-2, 1, 0]], [1 / 4, 1 / 2, 1 / 4], [1 / 4, 1 / 2, 1 / 4], 0),
        ([[1, -1], [-1, 1]], [0.5, 0.5], [0.5, 0.5], 0),
        ([[2, -1], [-1, 1]], [2 / 5, 3 / 5], [2 / 5, 3 / 5], 1 / 5),
        ([[3, 2], [1, 0]], [1, 0], [0, 1], 2),  # the first row and the second column dominate
        ([[5]], [1], [1], 5),
    ],
)
def test_matrices_with_known_equilibria(
    payoffs: list[list[float]], row: list[float], column: list[float], value: float
) -> None:
    found = nash_equilibrium(payoffs)
    assert found.row == pytest.approx(row, abs=CLOSE)
    assert found.column == pytest.approx(column, abs=CLOSE)
    assert found.value == pytest.approx(value, abs=CLOSE)


def test_a_dominated_choice_is_never_played() -> None:
    found = nash_equilibrium([[0, -1, 1, -2], [1, 0, -1, -2], [-1, 1, 0, -2], [-3, -3, -3, -3]])
    assert found.row[3] == 0.0


def test_openspiel_finds_no_better_response_to_equilibria_of_random_matrices() -> None:
    rng = np.random.default_rng(0)
    for shape in ((2, 2), (3, 5), (7, 4), (12, 12)):
        payoffs = rng.normal(size=shape)
        found = nash_equilibrium(payoffs)
        game = pyspiel.convert_to_turn_based(pyspiel.create_matrix_game(payoffs.tolist(), (-payoffs).tolist()))
        policy = TabularPolicy(game)
        for player, mixture in enumerate((found.row, found.column)):
            policy.policy_for_key(policy.states_per_player[player][0])[: len(mixture)] = mixture
        assert nash_conv(game, policy) == pytest.approx(0.0, abs=CLOSE)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_payoffs_changes_nothing_but_the_value(scale: float) -> None:
    payoffs = np.random.default_rng(1).normal(size=(5, 6))
    small, found = nash_equilibrium(payoffs), nash_equilibrium(scale * payoffs)
    assert found.value == pytest.approx(scale * small.value)
    assert found.row == pytest.approx(small.row)
    assert found.column == pytest.approx(small.column)


@pytest.mark.parametrize(
    ("payoffs", "says"),
    [([1.0, 2.0], "shape"), ([[]], "shape"), ([[0.0, float("nan")]], "finite"), ([[float("inf")]], "finite")],
)
def test_what_is_no_matrix_of_payoffs_is_refused(payoffs: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        nash_equilibrium(payoffs)  # type: ignore[arg-type]
