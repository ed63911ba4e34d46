"""Turns that several episodes of a step hold, because forks inherited them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from statistics import fmean
from typing import TypeVar

from marl.types import Advantage, Credit, TurnId

Step = TypeVar("Step", bound=Hashable)


def in_its_own_episode(worths: Iterable[tuple[Step, float]]) -> dict[Step, float]:
    """What each turn, or its token, is worth: what it is in the first episode that holds it, in which it was said.

    Not the mean over all: experience forks where an episode ended well, and the mean of a lucky course and of fresh
    ones would be compared with unlucky courses that are never played again.
    """
    found: dict[Step, float] = {}
    for turn, worth in worths:
        found.setdefault(turn, worth)
    return found


def credit_of(worths: Iterable[tuple[TurnId, float]]) -> Credit:
    """The same as credit."""
    return {turn: Advantage(worth) for turn, worth in in_its_own_episode(worths).items()}


def mean(values: Sequence[float]) -> float:
    """Exact where all are equal."""
    return values[0] if min(values) == max(values) else fmean(values)
