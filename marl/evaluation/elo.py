"""Ratings of players from games of two: Bradley-Terry strengths on Elo's scale, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

PointsMatrix = NDArray[np.float64]
"""Points of player i against player j, as [i, j]. The winner of a game gets 1 point, and a draw gives both a half."""
ELO_POINTS_PER_NAT = 400 / np.log(10)
"""Elo points per nat of log-odds: a difference of 400 points means odds of 10 to 1."""
_TOLERANCE = 1e-10
"""Largest change of a strength in the last step of Newton's method [nats]."""
_MAX_STEPS = 200
"""Maximum number of steps of Newton's method."""
_RESAMPLES = 1000
"""Number of resamples of the bootstrap."""


@dataclass(frozen=True, slots=True)
class EloRating:
    """A player's rating with the bounds of its 95 % interval. The mean over players is 0."""

    low: float
    elo: float
    high: float


def elo_ratings(points_of_pairs: ArrayLike, *, prior_draws: float = 0.0) -> NDArray[np.float64]:
    """Return the rating of each player, with mean 0: maximum-likelihood strengths in the model of Bradley and Terry.

    The model expects player i to win 1 / (1 + 10^((r_j - r_i) / 400)) points a game against j (Bradley and Terry 1952;
    Elo 1978).

    Args:
        points_of_pairs: points of player i against player j, as [i, j]; a draw counts as half a win for both.
        prior_draws: number of draws added to each pair that has played. They keep the ratings of players finite that
            won or lost all their games.

    Raises:
        ValueError: if `points_of_pairs` is no square matrix of points, or the most likely ratings are infinite, because
            some players have won no point against the others (Ford 1957).
    """
    points_won = np.array(points_of_pairs, dtype=np.float64)
    if points_won.ndim != 2 or points_won.shape[0] != points_won.shape[1] or not (points_won >= 0).all():
        raise ValueError(f"points: shape {points_won.shape}; a square matrix of numbers that are 0 or more is needed")
    np.fill_diagonal(points_won, 0.0)
    return ELO_POINTS_PER_NAT * _fit_bradley_terry_strengths(
        points_won + _fictitious_draw_points(points_won, prior_draws), np.zeros(len(points_won))
    )


def elo_ratings_with_intervals(
    points_by_start: ArrayLike, *, prior_draws: float = 1.0, seed: int = 0
) -> list[EloRating]:
    """Return a rating for each player, with the bounds of its 95 % interval.

    The bounds are percentiles of the bootstrap over starts (Efron 1979). All games from one start are drawn together,
    so the intervals include a start's effect on several pairs.

    Args:
        points_by_start: points of player i against player j in the games from start s, as [s, i, j].
        prior_draws: number of draws added to each pair that has played (see `elo_ratings`).
        seed: seed of the bootstrap.
    """
    points_won = np.asarray(points_by_start, dtype=np.float64)
    starts, players, _ = points_won.shape
    ratings, draws = (
        elo_ratings(points_won.sum(0), prior_draws=prior_draws),
        _fictitious_draw_points(points_won.sum(0), prior_draws),
    )
    counts = np.random.default_rng(seed).multinomial(starts, np.full(starts, 1 / starts), size=_RESAMPLES)
    resampled = (counts @ points_won.reshape(starts, -1)).reshape(-1, players, players)
    resampled_ratings = [
        ELO_POINTS_PER_NAT * _fit_bradley_terry_strengths(points + draws, ratings / ELO_POINTS_PER_NAT)
        for points in resampled
    ]
    low, high = np.quantile(resampled_ratings, (0.025, 0.975), axis=0)
    return [EloRating(*map(float, bounds)) for bounds in zip(low, ratings, high, strict=True)]


def _fictitious_draw_points(points_won: PointsMatrix, prior_draws: float) -> PointsMatrix:
    """Return the points from `prior_draws` fictitious draws of every pair that has played."""
    return prior_draws / 2 * (points_won + points_won.T > 0) * (1 - np.eye(len(points_won)))


def _fit_bradley_terry_strengths(
    points_won: PointsMatrix, initial_strengths_nats: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the most likely strengths [nats], with mean 0, by Newton's method from `initial_strengths_nats`."""
    count, _ = connected_components(points_won > 0, directed=True, connection="strong")
    if count > 1:
        raise ValueError(
            f"points: {count} groups of players of which one won no point against the others: no finite ratings; "
            "give a prior"
        )
    games, strengths = points_won + points_won.T, initial_strengths_nats
    for _ in range(_MAX_STEPS):
        expected = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        gradient = (points_won - games * expected).sum(1)
        curvature = games * expected * (1 - expected)
        # Only differences of strengths matter; the added ones fix their mean, so that the matrix is invertible.
        step = np.linalg.solve(np.diag(curvature.sum(1)) - curvature + 1.0, gradient)
        # Newton steps are cut to one nat, because the likelihood is nearly quadratic only within this distance.
        strengths = strengths + step * min(1.0, 1.0 / max(np.abs(step).max(), _TOLERANCE))
        if np.abs(step).max() < _TOLERANCE:
            break
    return strengths - strengths.mean()
