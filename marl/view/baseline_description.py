"""Names of the numbers that a baseline subtracted and divided by, found by computing them again from the record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isclose, isfinite
from statistics import fmean, pstdev, stdev

from marl.credit_stage.records import TurnCreditRecord

_TOLERANCE = 1e-9
"""Relative and absolute difference below which a recorded and a computed number are equal."""
_DIVISOR_TOLERANCE = 1e-4
"""Relative difference between a divisor and the standard deviation, to which a rule adds a small epsilon."""
_SHARED = {"start": "with this start", "prompt": "with this prompt", "problem": "on this problem"}
"""Property that peers share -> words."""


@dataclass(frozen=True, slots=True)
class BaselineDescription:
    """Words for the parts of the formula by which turns of one group got their advantages.

    A part whose number is not found again in the group, such as a learned value, has no words ("").
    """

    centre: str = ""
    """Number that was subtracted, such as `mean of 8 episodes with this start, this one included`."""
    divisor: str = ""
    """Number by which the difference was divided, such as `standard deviation`."""
    all_equal: str = ""
    """Sentence on a group in which all turns have the advantage 0, because nothing differs."""


@dataclass(frozen=True, slots=True)
class _Units:
    """Turns of a group in units that are compared by the mean of what their turns earned."""

    words: str
    """Plural of the unit, such as `episodes`."""
    mean_by_key: Mapping[Hashable, float]
    key: Callable[[TurnCreditRecord], Hashable]

    def mean(self, _: TurnCreditRecord) -> float:
        return fmean(self.mean_by_key.values())

    def maximum(self, _: TurnCreditRecord) -> float:
        return max(self.mean_by_key.values())

    def mean_of_others(self, member: TurnCreditRecord) -> float:
        own = self.mean_by_key[self.key(member)]
        return (fsum(self.mean_by_key.values()) - own) / (len(self.mean_by_key) - 1)


def describe_baseline(like: str | None, members: Sequence[TurnCreditRecord]) -> BaselineDescription:
    """Return words for the baseline of a group of turns that share the property `like`.

    A name is given only if its number equals the recorded one for every turn of the group.
    """
    compared = [member for member in members if member.baseline is not None and member.scale is not None]
    if not compared or not all(isfinite(member.earned) for member in members):
        return BaselineDescription()
    shared = f" {_SHARED[like]}" if like in _SHARED else ""
    zeroed = not any(member.scale for member in compared)
    undivided = all(member.scale == 1 for member in compared)
    found = BaselineDescription()
    for units in _possible_units(like, members):
        means, count = list(units.mean_by_key.values()), len(units.mean_by_key)
        if zeroed and count == 1:
            return BaselineDescription(all_equal=f"it is the only one of the {units.words}{shared}")
        if zeroed and _are_equal(max(means), min(means)):
            return BaselineDescription(all_equal=f"all {count} {units.words}{shared} earned the same")
        if zeroed or count == 1:
            continue
        formulas = {
            f"mean of {count} {units.words}{shared}, this one included": units.mean,
            f"mean of the {count - 1} other {units.words}{shared}": units.mean_of_others,
            f"maximum of {count} {units.words}{shared}, this one included": units.maximum,
        }
        for words, formula in formulas.items():
            if not all(_are_equal(member.baseline or 0.0, formula(member)) for member in compared if member.scale):
                continue
            divisor = _divisor_words(means, compared)
            # Several units may have the same mean, but only those that the rule compared have its deviation.
            if divisor or undivided:
                return BaselineDescription(words, divisor)
            found = found if found.centre else BaselineDescription(words)
    return found


def _possible_units(like: str | None, members: Sequence[TurnCreditRecord]) -> Iterator[_Units]:
    """Yield the divisions of a group into units, the most likely one first: whole episodes compare starts."""
    keys: dict[str, Callable[[TurnCreditRecord], Hashable]] = {
        "turns": lambda member: member.turn,
        "episodes": lambda member: member.turn[0],
        "results of one agent in one episode": lambda member: (member.turn[0], member.agent),
    }
    for words in sorted(keys, key=lambda words: words != {"start": "episodes"}.get(like or "", "turns")):
        earned: dict[Hashable, list[float]] = defaultdict(list)
        for member in members:
            earned[keys[words](member)].append(member.earned)
        yield _Units(words, {key: fmean(numbers) for key, numbers in earned.items()}, keys[words])


def _divisor_words(means: Sequence[float], compared: Sequence[TurnCreditRecord]) -> str:
    """Return the name of the number by which every difference was divided, or ""."""
    for words, deviation in (("standard deviation", stdev(means)), ("standard deviation (population)", pstdev(means))):
        if all(isclose(1.0, deviation * (each.scale or 0.0), rel_tol=_DIVISOR_TOLERANCE) for each in compared):
            return words
    return ""


def _are_equal(first: float, second: float) -> bool:
    return isclose(first, second, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
