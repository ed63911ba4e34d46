"""Ratings of players by pairs: Bradley-Terry strengths on Elo's scale, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

Points = NDArray[np.float64]
"""[i, j]: points that player i won against player j; a win is 1 for the winner, a draw a half for both."""
PER_NAT = 400 / np.log(10)
"""Elo points of a factor e in the odds: a difference of 400 is odds of 10 to 1."""
_CLOSE = 1e-10
_MOST_STEPS = 200
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class EloRating:
    """A player's rating with the bounds of its 95 % interval. The mean over players is 0."""

    low: float
    elo: float
    high: float


def elo(points: ArrayLike, *, prior: float = 0.0) -> NDArray[np.float64]:
    """Return the rating of each player, mean 0: the maximum-likelihood strengths of the model of Bradley and Terry.

    It expects i to win 1 / (1 + 10^((r_j - r_i) / 400)) points a game against j (Bradley and Terry 1952; Elo 1978). A
    draw counts as half a win for both. `prior`: draws that are added to each pair that has played, which keeps the
    ratings of players that won or lost all their games finite.

    Raises:
        ValueError: if it is no square matrix of points, or no finite ratings are most likely (Ford 1957): some players
            have won no point against the others.
    """
    won = np.array(points, dtype=np.float64)
    if won.ndim != 2 or won.shape[0] != won.shape[1] or not (won >= 0).all():
        raise ValueError(f"points: shape {won.shape}; a square matrix of numbers that are 0 or more is needed")
    np.fill_diagonal(won, 0.0)
    return PER_NAT * _strengths(won + _drawn(won, prior), np.zeros(len(won)))


def elo_with_intervals(by_start: ArrayLike, *, prior: float = 1.0, seed: int = 0) -> list[EloRating]:
    """Return a rating for each player, with bounds; `by_start[s, i, j]` are the points of i against j from start s.

    The bounds are percentiles of the bootstrap over starts: all games that began alike are drawn together, so what a
    start does to several pairs widens the intervals as it should (Efron 1979). `prior` as in `elo`, which see.
    """
    won = np.asarray(by_start, dtype=np.float64)
    starts, players, _ = won.shape
    whole, draws = elo(won.sum(0), prior=prior), _drawn(won.sum(0), prior)
    often = np.random.default_rng(seed).multinomial(starts, np.full(starts, 1 / starts), size=_RESAMPLES)
    resampled = (often @ won.reshape(starts, -1)).reshape(-1, players, players)
    again = [PER_NAT * _strengths(points + draws, whole / PER_NAT) for points in resampled]
    low, high = np.quantile(again, (0.025, 0.975), axis=0)
    return [EloRating(*map(float, bounds)) for bounds in zip(low, whole, high, strict=True)]


def _drawn(won: Points, prior: float) -> Points:
    """Return the points from `prior` fictitious draws of every pair that has played."""
    return prior / 2 * (won + won.T > 0) * (1 - np.eye(len(won)))


def _strengths(won: Points, guess: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most likely strengths, in nats with mean 0, by Newton's method from a guess."""
    _expect_connected(won)
    games, strengths = won + won.T, guess
    for _ in range(_MOST_STEPS):
        expected = 1 / (1 + np.exp(strengths[None, :] - strengths[:, None]))
        gradient = (won - games * expected).sum(1)
        curvature = games * expected * (1 - expected)
        # Only differences count: the matrix of ones, which is added, keeps the mean where it is.
        step = np.linalg.solve(np.diag(curvature.sum(1)) - curvature + 1.0, gradient)
        # The likelihood is nearly quadratic only within a nat.
        strengths = strengths + step * min(1.0, 1.0 / max(np.abs(step).max(), _CLOSE))
        if np.abs(step).max() < _CLOSE:
            break
    return strengths - strengths.mean()


def _expect_connected(won: Points) -> None:
    count, _ = connected_components(won > 0, directed=True, connection="strong")
    if count > 1:
        raise ValueError(
            f"points: {count} groups of players of which one won no point against the others: no finite ratings; "
            "give a prior"
        )
