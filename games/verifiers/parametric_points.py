r"""Points with one parameter: integer solutions (x, y) = (2 + 5k, -1 - 3k), and lines (1, 2) + t (3, 4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from marl.games.verifiers.closed_form import exact_value, is_scalar, variables
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.symbolic import substitute

_INTEGERS = Formula("symbol", name="mathbb Z")
_ASKS_FOR_INTEGERS = re.compile(r"\bintegers?\b|\bdiophantine\b", re.I)
_ASKS_FOR_LINE = re.compile(r"\bline\b|\bparametri\w+", re.I)
_LINES = frozenset(["lambda", "mu", "s", "t", "k", "r", "u", "n", "m"])


class PointsAlongLine(NamedTuple):
    """The points start + k step for all numbers k."""

    names: tuple[str, ...]
    """Names of the coordinates, or () if the text names none."""
    start: tuple[Fraction, ...]
    step: tuple[Fraction, ...]


def are_same_points_along_line(gold: Formula, answer: Formula, question: str) -> bool:
    """Return True if both formulas describe the same points, for all integers, or on a line if one is asked for."""
    right, stated = _read_points_along_line(gold), _read_points_along_line(answer)
    if right is None or stated is None or len(right.start) != len(stated.start):
        return False
    if right.names and stated.names and right.names != stated.names:
        return False
    is_integral = _has_integers(gold) or bool(_ASKS_FOR_INTEGERS.search(question))
    if not is_integral and not _ASKS_FOR_LINE.search(question):
        return False
    ratio = _ratio(right.step, stated.step)
    shift = _ratio(right.step, tuple(b - a for a, b in zip(right.start, stated.start, strict=True)))
    if not ratio or shift is None:
        return False
    return (abs(ratio) == 1 and shift.denominator == 1) if is_integral else True


def _ratio(vector: tuple[Fraction, ...], other: tuple[Fraction, ...]) -> Fraction | None:
    """Return the number c with `other` = c `vector`, or None if there is none."""
    index = next((index for index, number in enumerate(vector) if number), None)
    if index is None:
        return None
    ratio = other[index] / vector[index]
    return ratio if all(ratio * a == b for a, b in zip(vector, other, strict=True)) else None


def _has_integers(tree: Formula) -> bool:
    return any(part.head == "relation" and part.name == "in" and part.operands[1] == _INTEGERS for part in tree.walk())


def _read_points_along_line(tree: Formula) -> PointsAlongLine | None:
    """Return the path that a formula describes, or None for any other formula."""
    if tree.head == "list":
        parts = [part for part in tree.operands if not _is_membership_relation(part)]
        if len(parts) == 1:
            return _read_points_along_line(parts[0])
        names = [part.operands[0].name for part in parts if part.head == "relation" and part.name == "="]
        if len(names) != len(parts) or len(set(names)) != len(names):
            return None
        coordinates = {part.operands[0].name: part.operands[-1] for part in parts}
        return _points_along_line(tuple(sorted(coordinates)), tuple(coordinates[name] for name in sorted(coordinates)))
    if tree.head == "relation" and tree.name == "=" and len(tree.operands) == 2:
        left, right = tree.operands
        names = tuple(part.name for part in _coordinates(left) or () if part.head == "symbol")
        items = _coordinates(right)
        if items is None or len(names) not in (0, len(items)):
            return None
        order = sorted(range(len(items)), key=names.__getitem__) if names else range(len(items))
        return _points_along_line(tuple(sorted(names)), tuple(items[index] for index in order))
    items = _coordinates(tree)
    return _points_along_line((), items) if items else None


def _is_membership_relation(tree: Formula) -> bool:
    return tree.head == "relation" and tree.name == "in"


def _coordinates(tree: Formula) -> tuple[Formula, ...] | None:
    """Return the coordinates of a point, a column, or a sum of multiples of them; None for any other formula."""
    if tree.head == "sequence" and tree.name in ("()", "[]"):
        return tree.operands
    if tree.head == "matrix" and all(len(row.operands) == 1 for row in tree.operands):
        return tuple(row.operands[0] for row in tree.operands)
    if tree.head == "negative":
        items = _coordinates(tree.operands[0])
        return items and tuple(Formula("negative", (item,)) for item in items)
    if tree.head == "product":
        vectors = [items for part in tree.operands if (items := _coordinates(part))]
        factors = tuple(part for part in tree.operands if not _coordinates(part))
        if len(vectors) != 1 or not all(map(is_scalar, factors)):
            return None
        return tuple(Formula("product", (*factors, item)) for item in vectors[0])
    if tree.head == "quotient" and is_scalar(tree.operands[1]):
        items = _coordinates(tree.operands[0])
        return items and tuple(Formula("quotient", (item, tree.operands[1])) for item in items)
    if tree.head == "sum":
        terms = [_coordinates(part) for part in tree.operands]
        if None in terms or len({len(term or ()) for term in terms}) != 1:
            return None
        return tuple(Formula("sum", column) for column in zip(*(term or () for term in terms), strict=True))
    return None


def scaled_items(tree: Formula) -> tuple[Formula, ...]:
    """Return the coordinates of a multiple of a point or column, such as 1/5 (3, -4), or () for any other formula.

    Rational coordinates are worked out.
    """
    has_point = not tree.node_heads().isdisjoint(("sequence", "matrix"))
    if not has_point or tree.head not in ("product", "quotient", "negative"):
        return ()
    return tuple(map(_without_ones, _coordinates(tree) or ()))


def _without_ones(tree: Formula) -> Formula:
    """Return the value of a rational product, or the product without factors of 1."""
    value = exact_value(tree)
    if value is not None:
        return number_formula(value)
    factors = tuple(part for part in tree.operands if exact_value(part) != 1) if tree.head == "product" else ()
    return tree if not factors else factors[0] if len(factors) == 1 else Formula("product", factors)


def _points_along_line(names: tuple[str, ...], items: tuple[Formula, ...]) -> PointsAlongLine | None:
    """Return the path with coordinates `items`, or None if they are not linear in one parameter."""
    parameters = set[str]().union(*map(variables, items)) if all(map(is_scalar, items)) else set()
    if len(parameters) != 1 or not parameters <= _LINES or len(items) < 2:
        return None
    (parameter,) = parameters
    at = [_values_at_point(items, {parameter: Fraction(number)}) for number in range(3)]
    if None in at:
        return None
    first, second, third = (values or () for values in at)
    step = tuple(b - a for a, b in zip(first, second, strict=True))
    is_linear = step == tuple(b - a for a, b in zip(second, third, strict=True))
    return PointsAlongLine(names, first, step) if is_linear and any(step) else None


def _values_at_point(items: tuple[Formula, ...], point: Mapping[str, Fraction]) -> tuple[Fraction, ...] | None:
    values = [exact_value(substitute(item, point)) for item in items]
    return None if None in values else tuple(value or Fraction(0) for value in values)
