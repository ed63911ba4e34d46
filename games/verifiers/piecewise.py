r"""Functions of one variable by cases, also with absolute values, minima and maxima.

Two functions are equal if they have the same domain and the same values at the ends of all pieces and at random points
between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import NamedTuple
from zlib import crc32

from marl.games.verifiers.closed_form import exact_value, is_scalar, variables
from marl.games.verifiers.formulas import Formula
from marl.games.verifiers.real_sets import ALL_REALS, RealSet, combine_sets, is_same_set, read_set
from marl.games.verifiers.symbolic import compare_numbers, difference, substitute

_POINTS, _MAX_PIECES = 6, 8
"""Number of random points between two neighbouring ends, and maximum number of pieces of a function."""
_ASKS_FOR_CASES = re.compile(
    r"\b(?:by|in|with) cases\b|\bpiecewise\b|\bcase distinction|\bwithout absolute|abschnittsweise", re.I
)
_OTHERWISE = ("otherwise", "else", "sonst", "sinon")


class Piece(NamedTuple):
    """A formula and the numbers at which it is the value of the function."""

    value: Formula
    members: RealSet


def is_same_piecewise(gold: Formula, answer: Formula, question: str) -> bool:
    """Return True if both formulas are equal functions, of which at least one is given by cases.

    A question that asks for cases is answered by cases alone.
    """
    right, stated = _without_name(gold), _without_name(answer)
    if stated is not None and stated.head != "cases" and _ASKS_FOR_CASES.search(question):
        return False
    if right is None or stated is None or "cases" not in (right.head, stated.head):
        return False
    names = variables(right) | variables(stated)
    if len(names) != 1:
        return False
    (name,) = names
    pieces, others = _pieces(right), _pieces(stated)
    if not pieces or not others or not is_same_set(_domain(pieces), _domain(others)):
        return False
    ends = sorted(
        {end for piece in (*pieces, *others) for end in piece.members.ends} | _corners(right) | _corners(stated)
    )
    if any(_has_other_corners(tree) for tree in (right, stated)):
        return False
    points = _test_points(ends or [Fraction(0)], repr(answer))
    return all(_have_same_value_at(pieces, others, name, point) for point in points)


def _have_same_value_at(pieces: Sequence[Piece], other_pieces: Sequence[Piece], variable: str, point: Fraction) -> bool:
    """Return True if both functions have the same value at `point`, or none, and each has one value at most."""
    at_point = {variable: point}
    values = [substitute(piece.value, at_point) for piece in pieces if piece.members.contains(point)]
    stated = [substitute(piece.value, at_point) for piece in other_pieces if piece.members.contains(point)]
    if bool(values) != bool(stated):
        return False
    return all(bool(compare_numbers(value, other, real=True)) for value in values for other in stated)


def _without_name(tree: Formula) -> Formula | None:
    """Return the value of f(x) = ..., or `tree` itself if it is a function without a name, or None."""
    if tree.head == "relation":
        return tree.operands[1] if tree.name == "=" and len(tree.operands) == 2 else None
    return tree if tree.head == "cases" or is_scalar(tree) else None


def _pieces(tree: Formula) -> list[Piece]:
    """Return the pieces of a function, or [] if it has other conditions than sets of numbers, or too many."""
    if tree.head != "cases":
        return [Piece(tree, ALL_REALS)] if is_scalar(tree) else []
    pieces, remaining = list[Piece](), ALL_REALS
    if len(tree.operands) > _MAX_PIECES:
        return []
    for row in tree.operands:
        value, condition = row.operands
        is_rest = condition.head == "text" and condition.name.lower().strip(" .") in _OTHERWISE
        members = remaining if is_rest else read_set(condition)
        if members is None or not is_scalar(value):
            return []
        pieces.append(Piece(value, members))
        remaining = combine_sets("difference", remaining, members)
    return pieces


def _domain(pieces: Sequence[Piece]) -> RealSet:
    domain = pieces[0].members
    for piece in pieces[1:]:
        domain = combine_sets("union", domain, piece.members)
    return domain


def _corners(tree: Formula) -> set[Fraction]:
    """Return the numbers at which a linear argument of an absolute value, or a difference in a maximum, is zero."""
    corners = set[Fraction]()
    for part in tree.walk():
        for inner in _arguments_with_corner(part):
            if (zero := _zero_of_linear(inner)) is not None:
                corners.add(zero)
    return corners


def _has_other_corners(tree: Formula) -> bool:
    """Return True if `tree` has branches elsewhere than at `_corners`."""
    for part in tree.walk():
        if part.head == "call" and part.name in ("floor", "ceil"):
            return True
        for inner in _arguments_with_corner(part):
            if variables(inner) and _zero_of_linear(inner) is None:
                return True
    return False


def _arguments_with_corner(part: Formula) -> list[Formula]:
    if part.head == "call" and part.name == "abs":
        return [part.operands[0]]
    if part.head == "call" and part.name in ("max", "min") and len(part.operands) == 2:
        return [difference(*part.operands)]
    return []


def _zero_of_linear(tree: Formula) -> Fraction | None:
    """Return the zero of a linear formula in one variable with rational coefficients, or None for any other formula."""
    names = variables(tree)
    if len(names) != 1:
        return None
    (name,) = names
    values = [exact_value(substitute(tree, {name: Fraction(number)})) for number in range(3)]
    if None in values:
        return None
    first, second, third = (value or Fraction(0) for value in values)
    slope = second - first
    return -first / slope if slope and third - second == slope else None


def _test_points(endpoints: Sequence[Fraction], seed: str) -> list[Fraction]:
    """Return the `endpoints`, and random points between, before and after them."""
    random = Random(crc32(seed.encode()))
    limits = [endpoints[0] - 4, *endpoints, endpoints[-1] + 4]
    points = list(endpoints)
    for low, high in pairwise(limits):
        points += [low + (high - low) * Fraction(random.randint(1, 2**12 - 1), 2**12) for _ in range(_POINTS)]
    return points
