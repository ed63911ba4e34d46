r"""Sets of real numbers in any notation: intervals, inequalities, unions, complements, finite sets.

A set consists of a membership test and the boundary numbers at which membership may change. Two sets are equal if they
agree at all boundary numbers, between them and beyond them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf

from marl.games.verifiers.closed_form import exact_value, is_scalar, variables
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.plus_minus import sign_alternatives
from marl.games.verifiers.symbolic import approximate

_INFINITY = Formula("symbol", name="infty")
_ORDERS = {"<": "<", "le": "le", ">": "<", "ge": "le"}
_FUNCTION_NAMES = frozenset("fghpFGHPETSV")


@dataclass(frozen=True, slots=True)
class RealSet:
    """A set of real numbers. `ends`: every number at which membership may change."""

    ends: frozenset[Fraction]
    contains: Callable[[Fraction], bool]


_LINE = RealSet(frozenset(), lambda _: True)
_EMPTY = RealSet(frozenset(), lambda _: False)


def is_same_set(left: RealSet, right: RealSet) -> bool:
    """Return True if two sets have the same members."""
    ends = sorted(left.ends | right.ends) or [Fraction(0)]
    between = [(low + high) / 2 for low, high in pairwise(ends)]
    return all(left.contains(x) == right.contains(x) for x in (*ends, *between, ends[0] - 1, ends[-1] + 1))


def is_simple(members: RealSet) -> bool:
    """Return True if membership changes at every end: "x > 1 or x > 2" is not simple, hence not accepted."""
    ends = sorted(members.ends)
    if not ends:
        return True
    midpoints = [(low + high) / 2 for low, high in pairwise(ends)]
    before, after = [ends[0] - 1, *midpoints], [*midpoints, ends[-1] + 1]
    for below, end, above in zip(before, ends, after, strict=True):
        if members.contains(below) == members.contains(end) == members.contains(above):
            return False
    return True


def read_set(tree: Formula) -> RealSet | None:
    """Return the set of real numbers described by `tree`, or None if `tree` describes none."""
    reader = _READERS.get(tree.head)
    return reader(tree) if reader else None


def assigned_name(tree: Formula) -> str:
    """Return the name of an unknown, a function value or a length: x, f(x), AB; "" for any other formula."""
    first = tree.operands[0] if tree.operands else tree
    if tree.head == "symbol":
        return tree.name if variables(tree) else ""
    if tree.head == "text":
        return tree.name if re.fullmatch("[A-Z]{2,4}", tree.name) else ""
    if tree.head == "call" and tree.name == "abs":
        return assigned_name(first) if assigned_name(first).isupper() else ""  # |AB|, a length
    if tree.head != "product" or first.head != "symbol":
        return ""
    if len(tree.operands) == 2 and first.name in _FUNCTION_NAMES and first.name not in variables(tree.operands[1]):
        return f"{first.name}({tree.operands[1]})"
    return "".join(part.name for part in tree.operands) if all(part.name.isupper() for part in tree.operands) else ""


def has_condition(braces: Formula) -> bool:
    r"""Return True if `braces` are a condition, as in \{x \mid x > 3\}, and no list of members."""
    return _condition(braces) is not None


def _condition(braces: Formula) -> Formula | None:
    r"""Return the condition of \{x \mid x > 3\} or \{x \in R : x > 3, x \ne 4\}, or None for a list of members."""
    first, *conditions = braces.operands
    connective = "and"
    if first.head == "list" and not conditions:
        connective, (first, *conditions) = first.name, first.operands
    relations = first.name.split() if first.head == "relation" else []
    if ":" not in relations[:2] or relations[-1] == ":":
        return None
    bar = relations.index(":")
    condition = Formula("relation", first.operands[bar + 1 :], " ".join(relations[bar + 1 :]))
    condition = Formula("list", (condition, *conditions), connective) if conditions else condition
    domain = Formula("relation", first.operands[:2], relations[0])
    return Formula("intersection", (domain, condition)) if bar else condition


def _sequence(tree: Formula) -> RealSet | None:
    if tree.name == "{}":
        condition = _condition(tree)
        return read_set(condition) if condition else _finite(tree.operands)
    return _interval(tree.operands, tree.name[0] == "[", tree.name[1] == "]") if len(tree.operands) == 2 else None


def _finite(members: tuple[Formula, ...]) -> RealSet | None:
    numbers = set[Fraction]()
    for member in members:
        for alternative in sign_alternatives(member) or (member,):
            number = _end(alternative)
            if not isinstance(number, Fraction):
                return None  # infinity, or no number
            numbers.add(number)
    return RealSet(frozenset(numbers), numbers.__contains__)


def _interval(ends: tuple[Formula, ...], closed_below: bool, closed_above: bool) -> RealSet | None:
    low, high = map(_end, ends)
    if low is None or high is None or low > high or (low == high and not (closed_below and closed_above)):
        return None  # (2, 1) is a point
    if (closed_below and low == -inf) or (closed_above and high == inf):
        return None
    return RealSet(
        frozenset(end for end in (low, high) if isinstance(end, Fraction)),
        lambda x: (low < x or (closed_below and low == x)) and (x < high or (closed_above and x == high)),
    )


def _end(tree: Formula) -> Fraction | float | None:
    """Return the value of an end of an interval (infinity as a float), or None if `tree` is no number."""
    sign, bare = (-1, tree.operands[0]) if tree.head == "negative" else (1, tree)
    if bare == _INFINITY:
        return sign * inf
    if not is_scalar(tree) or variables(tree):
        return None
    value = exact_value(tree)
    return approximate(tree) if value is None else value


def _relation(tree: Formula) -> RealSet | None:
    r"""Read x > 3 and 1 < x <= 2 and x \in [0, 1] and x \ne 2."""
    relations, operands = tree.name.split(), tree.operands
    if relations[0] in ("in", "notin", "=", "ne"):
        if len(relations) > 1 or not assigned_name(operands[0]):
            return None
        members = read_set(operands[1]) if relations[0] in ("in", "notin") else _finite(operands[1:])
        if members is None or relations[0] in ("in", "="):
            return members
        return _combined("difference", _LINE, members)
    if all(sign in (">", "ge") for sign in relations):
        relations, operands = relations[::-1], operands[::-1]
    elif any(sign not in ("<", "le") for sign in relations):
        return None
    relations = [_ORDERS[sign] for sign in relations]
    return _distance(relations, operands) or _between(relations, operands)


def _distance(relations: list[str], operands: tuple[Formula, ...]) -> RealSet | None:
    """Read an inequality with one absolute value: |x| < 2, |x - 1| >= 3."""
    if len(operands) != 2:
        return None
    is_below = operands[0].head == "call" and operands[0].name == "abs"
    distance, bound = operands if is_below else operands[::-1]
    if distance.head != "call" or distance.name != "abs":
        return None
    centre, radius = _centre(distance.operands[0]), _end(bound)
    if centre is None or not isinstance(radius, Fraction) or radius <= 0:
        return None
    # |x| > 2 is the complement of the closed interval, |x| >= 2 that of the open one.
    closed = (relations[0] == "le") == is_below
    ball = _interval((number_formula(centre - radius), number_formula(centre + radius)), closed, closed)
    return ball if is_below or ball is None else _combined("difference", _LINE, ball)


def _centre(tree: Formula) -> Fraction | None:
    """Return the zero of x, x - 1 or x + 1, or None for any other formula."""
    first, *terms = tree.operands if tree.head == "sum" else (tree,)
    if first.head != "symbol" or not variables(first) or len(terms) > 1:
        return None
    if not terms:
        return Fraction(0)
    shift = _end(terms[0])
    return -shift if isinstance(shift, Fraction) else None


def _between(relations: list[str], operands: tuple[Formula, ...]) -> RealSet | None:
    """Read an ascending chain with a name: 3 < x or x <= 3 or 1 < x < 2."""
    if len(operands) == 2 and operands[0] != _INFINITY and assigned_name(operands[0]):
        relations, operands = ["<", *relations], (Formula("negative", (_INFINITY,)), *operands)
    elif len(operands) == 2:
        relations, operands = [*relations, "<"], (*operands, _INFINITY)
    if len(operands) != 3 or not assigned_name(operands[1]):
        return None
    return _interval((operands[0], operands[2]), relations[0] == "le", relations[1] == "le")


def _list(tree: Formula) -> RealSet | None:
    """Read conditions: "x < 1 or x > 2" is a union, "x > 1 and x < 2" an intersection, "x ≠ 1, 2" means both."""
    parts = tree.operands
    if parts[0].head == "relation" and parts[0].name == "ne" and all(part.head != "relation" for part in parts[1:]):
        name, first_excluded = parts[0].operands
        parts = tuple(Formula("relation", (name, excluded), "ne") for excluded in (first_excluded, *parts[1:]))
    names = set[str]()
    for part in parts:
        # x = 1, x = 2 are two solutions, and x = 1 and x = 2 are, too.
        if part.head != "relation" or (part.name == "=" and tree.name != "or"):
            return None
        names.add(next(filter(None, map(assigned_name, part.operands)), ""))
    if len(names) > 1:
        return None
    operation = "union" if tree.name == "or" else "intersection"
    result = read_set(parts[0])
    for part in parts[1:]:
        members = read_set(part)
        result = result and members and _combined(operation, result, members)
    return result


def _combination(tree: Formula) -> RealSet | None:
    left, right = map(read_set, tree.operands)
    return _combined(tree.head, left, right) if left and right else None


def _sum(tree: Formula) -> RealSet | None:
    r"""Read \mathbb{R} - \{2\}."""
    if len(tree.operands) != 2 or tree.operands[1].head != "negative":
        return None
    return _combination(Formula("difference", (tree.operands[0], *tree.operands[1].operands)))


def _combined(operation: str, left: RealSet, right: RealSet) -> RealSet:
    """Return the union, intersection or difference of two sets."""
    tests: dict[str, Callable[[Fraction], bool]] = {
        "union": lambda x: left.contains(x) or right.contains(x),
        "intersection": lambda x: left.contains(x) and right.contains(x),
        "difference": lambda x: left.contains(x) and not right.contains(x),
    }
    return RealSet(left.ends | right.ends, tests[operation])


_READERS: dict[str, Callable[[Formula], RealSet | None]] = {
    "symbol": lambda tree: {"reals": _LINE, "emptyset": _EMPTY}.get(tree.name),
    "sequence": _sequence,
    "list": _list,
    "relation": _relation,
    "union": _combination,
    "intersection": _combination,
    "difference": _combination,
    "sum": _sum,
}
