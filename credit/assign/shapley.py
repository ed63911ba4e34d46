"""Shapley values of players, from the values of their coalitions, as pure functions."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, fsum, sqrt
from statistics import fmean, stdev

Coalition = frozenset[str]
CoalitionValues = Mapping[Coalition, float]


def all_coalitions(players: Sequence[str]) -> Iterator[Coalition]:
    """Yield the 2^n coalitions of n players, in ascending order of size."""
    for size in range(len(players) + 1):
        yield from map(Coalition, combinations(players, size))


def shapley_values(players: Sequence[str], coalition_values: CoalitionValues) -> dict[str, float]:
    """Return phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! [v(S + i) - v(S)] (Shapley 1953).

    Args:
        players: the n players.
        coalition_values: v of all subsets of `players`.
    """
    n = len(players)
    shapley: dict[str, float] = {}
    for player in players:
        terms: list[float] = []
        for coalition in all_coalitions([other for other in players if other != player]):
            weight = 1 / (n * comb(n - 1, len(coalition)))
            terms.append(weight * (coalition_values[coalition | {player}] - coalition_values[coalition]))
        shapley[player] = fsum(terms)
    return shapley


@dataclass(frozen=True, slots=True)
class ShapleyEstimate:
    """Estimate of a player's Shapley value from random draws."""

    value: float
    """Mean of the player's sampled contributions."""
    error: float
    """Standard error of `value`."""


def random_circular_orders(players: Sequence[str], count: int, seed: int) -> list[tuple[str, ...]]:
    """Return `count` random orders of the players, to be read as circles: the last player is followed by the first."""
    rng = random.Random(seed)
    return [tuple(rng.sample(players, len(players))) for _ in range(count)]


def arc_coalitions(circular_order: Sequence[str]) -> Iterator[Coalition]:
    """Yield the arcs of a circle of players: the empty coalition, all runs of neighbours, and all players together.

    These coalitions arise if players join one by one along the circle, from any start, in either direction.
    """
    yield Coalition()
    for size in range(1, len(circular_order)):
        for start in range(len(circular_order)):
            yield _arc_coalition(circular_order, start, size)
    yield Coalition(circular_order)


def sampled_shapley_values(
    circular_orders: Sequence[Sequence[str]], coalition_values: CoalitionValues
) -> dict[str, ShapleyEstimate]:
    """Return each player's mean contribution on joining, over all circles and the 2n orders of each circle of n
    players.

    Random orders as in Castro et al. 2009, but the orders of a circle put each player once (in either direction) at
    every position, and share their n (n - 1) + 2 coalitions. For any circles, the values sum to the value of all
    players minus the value of the empty coalition. The error measures the choice of circles, not noise in the values.

    Args:
        circular_orders: at least two orders from `random_circular_orders`.
        coalition_values: values of all arcs of the circles.
    """
    draws: dict[str, list[float]] = defaultdict(list)
    for circle in circular_orders:
        for index, player in enumerate(circle):
            # An arc is a run of neighbours on the circle. Gains are measured on all arcs beside the player.
            gains: list[float] = []
            for size in range(len(circle)):
                for start in (index - size, index + 1):
                    arc = _arc_coalition(circle, start, size)
                    gains.append(coalition_values[arc | {player}] - coalition_values[arc])
            draws[player].append(fmean(gains))
    estimates: dict[str, ShapleyEstimate] = {}
    for player, contributions in draws.items():
        error = stdev(contributions) / sqrt(len(contributions))
        estimates[player] = ShapleyEstimate(fmean(contributions), error)
    return estimates


def _arc_coalition(circular_order: Sequence[str], start: int, size: int) -> Coalition:
    """Return the coalition of `size` neighbours on the circle, beginning at index `start`."""
    return Coalition(circular_order[(start + offset) % len(circular_order)] for offset in range(size))
