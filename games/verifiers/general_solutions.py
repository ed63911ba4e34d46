r"""General solutions with an integer parameter: x = \frac{\pi}{4} + k\pi, k \in \mathbb{Z}, also several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

from marl.games.verifiers.closed_form import is_scalar, variables
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.plus_minus import sign_alternatives
from marl.games.verifiers.symbolic import approximate, compare_numbers, difference, substitute

_INTEGERS = Formula("symbol", name="mathbb Z")
_PARAMETERS = frozenset("kmn")
_MAX_PERIODS, _MAX_STARTS, _MAX_PROGRESSIONS, _MAX_SHIFT = 24, 48, 8, 1000
"""Maximum denominator of the ratio of two periods, number of starts in a common period, number of progressions in a
solution, and number of periods by which two starts may be shifted."""


class Progression(NamedTuple):
    """The numbers start + k period for all integers k."""

    start: Formula
    period: Formula


class Solution(NamedTuple):
    """The union of some progressions."""

    name: str
    """Name of the unknown, or "" if only its values are stated."""
    progressions: tuple[Progression, ...]


def is_same_progression(gold: Formula, answer: Formula) -> bool:
    """Return True if both formulas are general solutions with the same numbers, from whichever starts and periods."""
    right, stated = _read_solution(gold), _read_solution(answer)
    if right is None or stated is None or len({right.name, stated.name} - {""}) > 1:
        return False
    every = (*right.progressions, *stated.progressions)
    sizes = _sizes_of_periods([progression.period for progression in every])
    if not sizes:
        return False
    common = lcm(*sizes)
    if sum(common // size for size in sizes) > _MAX_STARTS:
        return False
    count = len(right.progressions)
    period = _multiple(Fraction(common, sizes[0]), every[0].period)
    starts = list(_solutions_in_period(right.progressions, sizes[:count], common))
    others = list(_solutions_in_period(stated.progressions, sizes[count:], common))
    return all(any(_is_shifted(start, other, period) for other in others) for start in starts) and all(
        any(_is_shifted(start, other, period) for start in starts) for other in others
    )


def _sizes_of_periods(periods: Sequence[Formula]) -> list[int]:
    """Return the sizes of periods as multiples of a common unit, or [] if their ratios are no simple fractions."""
    ratios, first = list[Fraction](), approximate(periods[0])
    for period in periods:
        size = approximate(period)
        if not first or not size:
            return []
        ratio = abs(size / first).limit_denominator(_MAX_PERIODS)
        signed = ratio if size / first > 0 else -ratio
        if not ratio or not compare_numbers(_multiple(signed, periods[0]), period, real=True):
            return []
        ratios.append(ratio)
    unit = Fraction(gcd(*(ratio.numerator for ratio in ratios)), lcm(*(ratio.denominator for ratio in ratios)))
    return [int(ratio / unit) for ratio in ratios]


def _solutions_in_period(
    progressions: Sequence[Progression], period_sizes: Sequence[int], common_period: int
) -> Iterator[Formula]:
    """Yield the members of `progressions` in one period of the size `common_period`."""
    for progression, size in zip(progressions, period_sizes, strict=True):
        for index in range(common_period // size):
            shift = _multiple(Fraction(index), progression.period)
            yield Formula("sum", (progression.start, shift)) if index else progression.start


def _is_shifted(left: Formula, right: Formula, period: Formula) -> bool:
    """Return True if the difference of two numbers is a multiple of `period`."""
    size, shift = approximate(period), approximate(difference(right, left))
    if not size or shift is None or abs(round(shift / size)) > _MAX_SHIFT:
        return False
    shifted = Formula("sum", (left, _multiple(Fraction(round(shift / size)), period)))
    return bool(compare_numbers(shifted, right, real=True))


def _multiple(factor: Fraction, tree: Formula) -> Formula:
    return tree if factor == 1 else Formula("product", (number_formula(factor), tree))


def _read_solution(tree: Formula) -> Solution | None:
    r"""Return the progressions of x = a + k p or x = b + k q, k \in \mathbb{Z}, or None for any other formula.

    The domain of k may be missing if the periods are written with π or degrees.
    """
    parameters, values, names = set[str](), list[Formula](), set[str]()
    for part in _solutions_and_domains(tree):
        if part.head == "relation" and part.name == "in" and part.operands[1] == _INTEGERS:
            parameters |= {part.operands[0].name}
            continue
        is_equation = part.head == "relation" and part.name == "=" and len(part.operands) == 2
        if is_equation and part.operands[0].head != "symbol":
            return None
        names |= {part.operands[0].name} if is_equation else set()
        value = part.operands[-1] if is_equation else part
        values += sign_alternatives(value) or (value,)
    if not parameters and ("pi" in tree.symbols() or any(part.name == "°" for part in tree.walk())):
        parameters = set(_PARAMETERS)
    if not values or len(values) > _MAX_PROGRESSIONS or len(names) > 1:
        return None
    progressions = list[Progression]()
    for value in values:
        if not is_scalar(value) or len(variables(value)) != 1 or not variables(value) <= parameters:
            return None
        found = _progressions_of(value, *variables(value))
        if not found:
            return None
        progressions += found
    return Solution(names.pop() if names else "", tuple(progressions))


def _solutions_and_domains(tree: Formula) -> Iterator[Formula]:
    r"""Yield the solutions and the domains of parameters in a list or in a set such as \{k\pi : k \in \mathbb{Z}\}."""
    if tree.head == "list" or (tree.head == "sequence" and tree.name == "{}"):
        for part in tree.operands:
            yield from _solutions_and_domains(part)
    elif tree.head == "relation" and tree.name == "in" and tree.operands[1] != _INTEGERS:
        yield from _solutions_and_domains(tree.operands[1])
    elif tree.head == "relation" and tree.name.startswith(": ") and len(tree.operands) == 3:
        condition = Formula("relation", tree.operands[1:], tree.name.removeprefix(": "))
        if tree.name == ": in":
            yield tree.operands[0]
        yield condition
    else:
        yield tree


def _progressions_of(value: Formula, parameter: str) -> list[Progression]:
    """Return the progressions of a formula: one, or two if it differs between even and odd parameters, or []."""
    for step in (1, 2):
        found = list[Progression]()
        for first in range(step):
            numbers = [substitute(value, {parameter: Fraction(first + step * index)}) for index in range(4)]
            period = difference(numbers[1], numbers[0])
            # Numbers such as k^2 have unequal differences, so they are no arithmetic progression.
            others = (difference(numbers[index + 1], numbers[index]) for index in (1, 2))
            if not all(bool(compare_numbers(period, other, real=True)) for other in others):
                break
            found.append(Progression(numbers[0], period))
        if len(found) == step:
            return found
    return []
