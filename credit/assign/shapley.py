"""Shapley values of players, from the values of their coalitions, as pure functions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb, fsum, sqrt
from statistics import fmean, stdev

Coalition = frozenset[str]
CoalitionValues = Mapping[Coalition, float]


def subsets(players: Sequence[str]) -> Iterator[Coalition]:
    """Return all 2^n coalitions, in ascending order of size."""
    sizes = range(len(players) + 1)
    return map(Coalition, chain.from_iterable(combinations(players, size) for size in sizes))


def shapley_values(players: Sequence[str], values: CoalitionValues) -> dict[str, float]:
    """Return phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)] (Shapley 1953).

    Args:
        values: v of all subsets of `players`.
    """
    n = len(players)
    weights = [1 / (n * comb(n - 1, size)) for size in range(n)]
    shapley: dict[str, float] = {}
    for player in players:
        coalitions = subsets([other for other in players if other != player])
        shapley[player] = fsum(weights[len(s)] * (values[s | {player}] - values[s]) for s in coalitions)
    return shapley


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over random draws."""

    value: float
    error: float
    """Standard error of the mean."""


def random_circles(players: Sequence[str], count: int, seed: int) -> list[tuple[str, ...]]:
    """Return `count` random orders of the players, whose last player is a neighbour of the first."""
    rng = random.Random(seed)
    return [tuple(rng.sample(players, len(players))) for _ in range(count)]


def arcs(circle: Sequence[str]) -> Iterator[Coalition]:
    """Yield the empty coalition, all runs of neighbours on the circle, and the coalition of all players.

    These coalitions arise if players join one by one along the circle, from any start, in either direction.
    """
    n = len(circle)
    yield Coalition()
    for size in range(1, n):
        yield from (_arc(circle, start, size) for start in range(n))
    yield Coalition(circle)


def sampled_shapley_values(circles: Sequence[Sequence[str]], values: CoalitionValues) -> dict[str, Estimate]:
    """Return each player's mean contribution on joining, over the 2n orders of each random circle and over circles.

    Random orders as in Castro et al. 2009, but the orders of a circle put each player once (in either direction) at
    every position, and share their n (n - 1) + 2 coalitions. For any circles, the values sum to the value of all
    players minus that of the empty coalition. The error measures the choice of circles, not noise in the values.

    Args:
        circles: at least two orders from `random_circles`.
        values: values of all arcs of the circles.
    """
    contributions = [_contributions(circle, values) for circle in circles]
    estimates: dict[str, Estimate] = {}
    for player in circles[0]:
        draws = [of_circle[player] for of_circle in contributions]
        estimates[player] = Estimate(fmean(draws), stdev(draws) / sqrt(len(draws)))
    return estimates


def _arc(circle: Sequence[str], start: int, size: int) -> Coalition:
    return Coalition(circle[(start + offset) % len(circle)] for offset in range(size))


def _contributions(circle: Sequence[str], values: CoalitionValues) -> dict[str, float]:
    """Return each player's mean contribution to the arcs (the empty one included) that end or begin next to it."""
    contributions: dict[str, float] = {}
    for index, player in enumerate(circle):
        gains: list[float] = []
        for size in range(len(circle)):
            for start in (index - size, index + 1):
                arc = _arc(circle, start, size)
                gains.append(values[arc | {player}] - values[arc])
        contributions[player] = fmean(gains)
    return contributions
