"""Turns that several episodes of a step hold, because forks inherited them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from marl.types import Advantage, Credit, TurnId


def mean_of_branches(worths: Iterable[tuple[TurnId, float]]) -> dict[TurnId, float]:
    """What each turn is worth: the mean over the episodes that hold it, for each of which `worths` has an entry."""
    found: dict[TurnId, float] = {}
    again: dict[TurnId, list[float]] = {}
    for turn, worth in worths:
        if turn in found:
            again.setdefault(turn, [found[turn]]).append(worth)
        else:
            found[turn] = worth
    for turn, several in again.items():
        found[turn] = mean(several)
    return found


def credit_of(worths: Iterable[tuple[TurnId, float]]) -> Credit:
    """The same as credit."""
    return {turn: Advantage(worth) for turn, worth in mean_of_branches(worths).items()}


def mean(values: Sequence[float]) -> float:
    """Exact where all are equal."""
    return values[0] if min(values) == max(values) else fmean(values)
