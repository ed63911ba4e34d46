"""Shapley values as pure functions: what coalitions are worth -> what each of their players is."""

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
    """Return all 2^n coalitions, the smaller ones first."""
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
    """Its standard error."""


def random_circles(players: Sequence[str], count: int, seed: int) -> list[tuple[str, ...]]:
    """Return random orders, each to be closed to a circle."""
    rng = random.Random(seed)
    return [tuple(rng.sample(players, len(players))) for _ in range(count)]


def arcs(circle: Sequence[str]) -> Iterator[Coalition]:
    """Yield the empty coalition, all runs of neighbours, and everybody.

    These are the coalitions that arise when players come one by one along the circle, from any place on, in either
    direction.
    """
    n = len(circle)
    yield Coalition()
    for size in range(1, n):
        yield from (_arc(circle, start, size) for start in range(n))
    yield Coalition(circle)


def sampled_shapley_values(circles: Sequence[Sequence[str]], values: CoalitionValues) -> dict[str, Estimate]:
    """Return what each player adds on arrival, averaged over the 2n orders of each random circle, and over circles.

    Random orders as in Castro et al. 2009, but a circle's orders have each player once (in either direction) in every
    place, and their coalitions in common: n (n - 1) + 2 of them. Whatever the circles, the values sum to what all are
    worth minus what nobody is. The error is that of drawing circles; it says nothing of chance within the values.

    Args:
        circles: at least two, as `random_circles` draws them.
        values: of all their arcs.
    """
    added = [_added(circle, values) for circle in circles]
    estimates: dict[str, Estimate] = {}
    for player in circles[0]:
        draws = [gains[player] for gains in added]
        estimates[player] = Estimate(fmean(draws), stdev(draws) / sqrt(len(draws)))
    return estimates


def _arc(circle: Sequence[str], start: int, size: int) -> Coalition:
    return Coalition(circle[(start + place) % len(circle)] for place in range(size))


def _added(circle: Sequence[str], values: CoalitionValues) -> dict[str, float]:
    """Return what each player adds, on average over all arcs (the empty one, too) that end or begin next to it."""
    n = len(circle)
    added: dict[str, float] = {}
    for place, player in enumerate(circle):
        before = [_arc(circle, start, size) for size in range(n) for start in (place - size, place + 1)]
        added[player] = fmean([values[arc | {player}] - values[arc] for arc in before])
    return added
