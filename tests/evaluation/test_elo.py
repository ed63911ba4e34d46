"""Ratings: a published data set, exact win probabilities, and whether intervals hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from marl.evaluation.elo import ELO_POINTS_PER_NAT, elo_ratings, elo_ratings_with_intervals

TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
BASEBALL = np.array(
    [
        [0, 7, 9, 7, 7, 9, 11],
        [6, 0, 7, 5, 11, 9, 9],
        [4, 6, 0, 7, 7, 8, 12],
        [6, 8, 6, 0, 6, 7, 10],
        [6, 2, 6, 7, 0, 7, 12],
        [4, 4, 5, 6, 6, 0, 6],
        [2, 4, 1, 3, 1, 7, 0],
    ],
    dtype=float,
)
"""Wins of each team over each other one, American League 1987 (Agresti 1990, Categorical Data Analysis)."""
PUBLISHED = (1.5814, 1.4364, 1.2945, 1.2476, 1.1077, 0.6839, 0.0)
"""Strengths above Baltimore's in nats, as R's BradleyTerry2 prints them (Turner and Firth 2012)."""


def expected(strengths: np.ndarray) -> np.ndarray:
    """Points a game by the model, 0 on the diagonal."""
    chances = 1 / (1 + 10 ** ((strengths[None, :] - strengths[:, None]) / 400))
    return chances * (1 - np.eye(len(strengths)))


def test_baseball_teams_get_the_strengths_that_were_published() -> None:
    found = elo_ratings(BASEBALL) / ELO_POINTS_PER_NAT
    assert found - found[-1] == pytest.approx(PUBLISHED, abs=5e-5)
    assert found.mean() == pytest.approx(0, abs=1e-12)


def test_no_other_ratings_are_more_likely_with_draws_as_half_points_and_added_ones() -> None:
    points = np.random.default_rng(0).integers(0, 9, (5, 5)) / 2

    def unlikely(strengths: np.ndarray) -> float:
        odds = np.log1p(np.exp(strengths[None, :] - strengths[:, None]))
        return float(((points + 1) * (1 - np.eye(5)) * odds).sum())

    best = minimize(unlikely, np.zeros(5), tol=1e-12).x
    assert elo_ratings(points, prior_draws=2) / ELO_POINTS_PER_NAT == pytest.approx(best - best.mean(), abs=1e-5)


def test_exact_expected_points_give_back_the_ratings_whatever_was_won_against_oneself() -> None:
    strengths = np.array([-700.0, -50.0, 0.0, 150.0, 600.0])
    assert elo_ratings(expected(strengths) + 9 * np.eye(5)) == pytest.approx(strengths, abs=1e-6)


def test_a_lead_of_400_points_is_odds_of_ten_to_one() -> None:
    assert np.diff(elo_ratings([[0, 1], [10, 0]])) == pytest.approx([400])


def test_whoever_won_every_game_has_no_rating_without_added_draws() -> None:
    with pytest.raises(ValueError, match="2 groups of players"):
        elo_ratings([[0, 10], [0, 0]])
    assert elo_ratings([[0, 10], [0, 0]], prior_draws=1) == pytest.approx([200 * np.log10(21), -200 * np.log10(21)])


def test_players_who_beat_each_other_in_a_circle_are_rated_alike() -> None:
    assert elo_ratings([[0, 9, 1], [1, 0, 9], [9, 1, 0]]) == pytest.approx([0, 0, 0], abs=1e-9)


@pytest.mark.parametrize("points", [[[0, 1]], [[0, -1], [1, 0]]])
def test_what_is_no_table_of_points_is_refused(points: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="points: shape"):
        elo_ratings(points)


@pytest.mark.slow
def test_intervals_hold_the_true_rating_19_times_in_20_also_where_a_start_decides_several_games() -> None:
    rng, strengths = np.random.default_rng(0), np.array([-120.0, 0.0, 120.0])
    chances, held = expected(strengths), []
    for trial in range(100):
        # One random number a start decides the games of all pairs in both seats, so these are anything but independent.
        luck = rng.random((60, 1, 1)) * np.triu(np.ones((3, 3)), 1)
        first = np.triu(luck < chances, 1).astype(float)
        by_start = 2 * (first + (np.triu(np.ones((3, 3)), 1) - first).transpose(0, 2, 1))
        rated = zip(elo_ratings_with_intervals(by_start, seed=trial), strengths, strict=True)
        held += [one.low <= true <= one.high for one, true in rated]
    assert 0.90 <= np.mean(held) <= 0.985, np.mean(held)
