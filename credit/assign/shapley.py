"""Shapley values as pure functions: what coalitions are worth -> what each of their players is."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb, fsum, sqrt
from statistics import fmean, stdev

Coalition = frozenset[str]
Worths = Mapping[Coalition, float]


def subsets(players: Sequence[str]) -> Iterator[Coalition]:
    """All 2^n of them, the smaller ones first."""
    sizes = range(len(players) + 1)
    return map(Coalition, chain.from_iterable(combinations(players, size) for size in sizes))


def shapley_values(players: Sequence[str], worths: Worths) -> dict[str, float]:
    """phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)] (Shapley 1953).

    Args:
        worths: of all subsets of `players`.
    """
    n = len(players)
    weights = [1 / (n * comb(n - 1, size)) for size in range(n)]
    found: dict[str, float] = {}
    for player in players:
        others = [other for other in players if other != player]
        found[player] = fsum(weights[len(s)] * (worths[s | {player}] - worths[s]) for s in subsets(others))
    return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over random draws."""

    value: float
    error: float
    """Its standard error."""


def random_circles(players: Sequence[str], many: int, seed: int) -> list[tuple[str, ...]]:
    """Random orders, each to be closed to a circle."""
    rng = random.Random(seed)
    return [tuple(rng.sample(players, len(players))) for _ in range(many)]


def arcs(circle: Sequence[str]) -> Iterator[Coalition]:
    """Nobody, everybody, and all who stand side by side: those who are there when players come one by one along the
    circle, from whichever place on, in either direction."""
    n = len(circle)
    yield Coalition()
    for size in range(1, n):
        yield from (_arc(circle, start, size) for start in range(n))
    yield Coalition(circle)


def sampled_shapley_values(circles: Sequence[Sequence[str]], worths: Worths) -> dict[str, Estimate]:
    """What each player adds on arrival, averaged over the 2n orders of each random circle, and over circles.

    Random orders as in Castro et al. 2009, but a circle's orders have each player once (in either direction) in every
    place, and their coalitions in common: n (n - 1) + 2 of them. Whatever the circles, the values sum to what all are
    worth minus what nobody is. The error is that of drawing circles; it says nothing of chance within the worths.

    Args:
        circles: at least two, as `random_circles` draws them.
        worths: of all their arcs.
    """
    added = [_added(circle, worths) for circle in circles]
    found: dict[str, Estimate] = {}
    for player in circles[0]:
        draws = [each[player] for each in added]
        found[player] = Estimate(fmean(draws), stdev(draws) / sqrt(len(draws)))
    return found


def _arc(circle: Sequence[str], start: int, size: int) -> Coalition:
    return Coalition(circle[(start + place) % len(circle)] for place in range(size))


def _added(circle: Sequence[str], worths: Worths) -> dict[str, float]:
    """What each player adds to all arcs that end right before it or begin right after it, nobody's included."""
    n = len(circle)
    found: dict[str, float] = {}
    for place, player in enumerate(circle):
        gains: list[float] = []
        for size in range(n):
            for start in (place - size, place + 1):
                before = _arc(circle, start, size)
                gains.append(worths[before | {player}] - worths[before])
        found[player] = fmean(gains)
    return found
