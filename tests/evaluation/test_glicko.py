"""Glicko-2: Glickman's worked example, players who stay away, and strengths that are known."""

from __future__ import annotations

import numpy as np
import pytest

from marl.evaluation.glicko import GamesAgainst, GlickoRating, glicko, updated


def test_the_worked_example_of_its_author_comes_out() -> None:
    # https://www.glicko.net/glicko/glicko2.pdf: one win against 1400, losses against 1550 and 1700.
    opponents = [(1400, 30, 1), (1550, 100, 0), (1700, 300, 0)]
    results = [GamesAgainst(GlickoRating(rating, deviation), points, 1) for rating, deviation, points in opponents]
    after = updated(GlickoRating(1500, 200), results)
    assert after.rating == pytest.approx(1464.06, abs=0.01)
    assert after.deviation == pytest.approx(151.52, abs=0.01)
    assert after.volatility == pytest.approx(0.05999, abs=1e-5)


def test_who_did_not_play_is_known_less_well() -> None:
    after = updated(GlickoRating(1600, 50), [])
    assert (after.rating, after.volatility) == (1600, 0.06)
    assert after.deviation == pytest.approx(np.hypot(50, 0.06 * 173.7178))


def test_many_surprises_raise_the_volatility() -> None:
    strong = GlickoRating(2200, 50)
    assert updated(GlickoRating(1500, 50), [GamesAgainst(strong, 10, 10)]).volatility > 0.0601


def test_ratings_approach_the_strengths_of_those_who_play() -> None:
    rng, strengths = np.random.default_rng(0), np.array([-200.0, 0.0, 200.0])
    chances = 1 / (1 + 10 ** ((strengths[None, :] - strengths[:, None]) / 400))
    first = np.triu(rng.random((300, 3, 3)) < chances, 1).astype(float)
    lost = (np.triu(np.ones((3, 3)), 1) - first).transpose(0, 2, 1)
    rated = glicko(first + lost)
    assert np.diff([one.rating for one in rated]) == pytest.approx([200, 200], abs=90)
    assert all(one.low < 1500 + true < one.high for one, true in zip(rated, strengths, strict=True))
    assert max(one.deviation for one in rated) < 80
