"""Glicko-2 ratings of players by pairs: a rating with its deviation, and how erratically a player performs.

Formulas and constants: Glickman, Example of the Glicko-2 system, https://www.glicko.net/glicko/glicko2.pdf (2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_MEAN = 1500.0
_SCALE = 173.7178
"""Points of the usual scale in one of the system's own."""
_TAU = 0.5
"""Limit on changes of volatility; Glickman recommends .3 to 1.2."""
_CLOSE = 1e-6


@dataclass(frozen=True, slots=True)
class GlickoRating:
    """A player's rating, at first that of somebody who has not played yet."""

    rating: float = _MEAN
    deviation: float = 350.0
    """Standard deviation of the rating."""
    volatility: float = 0.06
    """Expected fluctuation of the rating from one period to the next, in units of 173.7 points."""

    @property
    def low(self) -> float:
        """Return the lower bound of the 95 % interval."""
        return self.rating - 1.96 * self.deviation

    @property
    def high(self) -> float:
        """Return the upper bound of the 95 % interval."""
        return self.rating + 1.96 * self.deviation


@dataclass(frozen=True, slots=True)
class GamesAgainst:
    """Games of a player against one opponent in a period."""

    opponent: GlickoRating
    points: float
    """Points that the player won; a win is 1, a draw a half."""
    games: float


def glicko(by_start: ArrayLike) -> list[GlickoRating]:
    """Return a rating for each player; `by_start[s, i, j]` are the points of i against j from start s.

    All games that began alike are one period, so results count in the order of starts, later ones more: that is what
    Glicko is for, where players change. Players that stay as they are have better ratings by `ratings.elo`.
    """
    won = np.asarray(by_start, dtype=np.float64)
    players = [GlickoRating() for _ in range(won.shape[1])]
    for points in won:
        games = points + points.T
        played = [[j for j in range(len(players)) if j != i and games[i, j]] for i in range(len(players))]
        players = [
            updated(player, [GamesAgainst(players[j], points[i, j], games[i, j]) for j in played[i]])
            for i, player in enumerate(players)
        ]
    return players


def updated(player: GlickoRating, results: Sequence[GamesAgainst], tau: float = _TAU) -> GlickoRating:
    """Return a player's rating after a period; without games, only its deviation grows."""
    mu, phi = (player.rating - _MEAN) / _SCALE, player.deviation / _SCALE
    information = gain = 0.0
    for each in results:
        spread = each.opponent.deviation / _SCALE
        weight = 1 / math.sqrt(1 + 3 * (spread / math.pi) ** 2)
        expected = 1 / (1 + math.exp(-weight * (mu - (each.opponent.rating - _MEAN) / _SCALE)))
        information += each.games * weight**2 * expected * (1 - expected)
        gain += weight * (each.points - each.games * expected)
    if not information:
        grown = math.hypot(phi, player.volatility)
        return GlickoRating(player.rating, _SCALE * grown, player.volatility)
    volatility = _volatility(player.volatility, phi, 1 / information, gain / information, tau)
    phi = 1 / math.sqrt(1 / (phi**2 + volatility**2) + information)
    return GlickoRating(_MEAN + _SCALE * (mu + phi**2 * gain), _SCALE * phi, volatility)


def _volatility(before: float, phi: float, variance: float, change: float, tau: float) -> float:
    """Return the new volatility; `change`: improvement that the games alone suggest, with its `variance`."""
    start = math.log(before**2)

    def slope(x: float) -> float:
        whole = phi**2 + variance + math.exp(x)
        return math.exp(x) * (change**2 - whole) / (2 * whole**2) - (x - start) / tau**2

    if change**2 > phi**2 + variance:
        other = math.log(change**2 - phi**2 - variance)
    else:
        steps = 1
        while slope(start - steps * tau) < 0:
            steps += 1
        other = start - steps * tau
    return math.exp(_root(slope, start, other) / 2)


def _root(slope: Callable[[float], float], near: float, far: float) -> float:
    """Return where a function is 0 between two points, by the Illinois algorithm (step 5 of Glickman's procedure)."""
    at_near, at_far = slope(near), slope(far)
    while abs(far - near) > _CLOSE:
        between = near + (near - far) * at_near / (at_far - at_near)
        at_between = slope(between)
        if at_between * at_far <= 0:
            near, at_near = far, at_far
        else:
            at_near /= 2
        far, at_far = between, at_between
    return near
