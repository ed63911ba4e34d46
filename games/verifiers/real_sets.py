r"""Sets of real numbers, however they are written: intervals, inequalities, unions, complements, finite sets.

A set is known by the numbers at which membership may change and by a test of membership. So two sets are equal if they
agree at all of these numbers, and between and beyond them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf

from games.verifiers.closed_form import exact, is_scalar, symbols
from games.verifiers.formulas import Tree, number
from games.verifiers.plus_minus import alternatives
from games.verifiers.symbolic import approximate

_INFINITY = Tree("symbol", name="infty")
_ORDERS = {"<": "<", "le": "le", ">": "<", "ge": "le"}
_FUNCTION_NAMES = frozenset("fghpFGHPETSV")


@dataclass(frozen=True, slots=True)
class RealSet:
    """A set of real numbers."""

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
    """Return True if membership changes at every end: x > 1 or x > 2 is still to be simplified."""
    ends = sorted(members.ends)
    between = [ends[0] - 1, *((low + high) / 2 for low, high in pairwise(ends)), ends[-1] + 1] if ends else []
    around = zip(between, ends, between[1:], strict=False)
    return all(len(set(map(members.contains, numbers))) > 1 for numbers in around)


def read_set(tree: Tree) -> RealSet | None:
    """Return the set of real numbers that a tree means; None if it means none."""
    reader = _READERS.get(tree.head)
    return reader(tree) if reader else None


def label(tree: Tree) -> str:
    """Return the name that a tree gives to something: x, f(x), AB; "" if it is none."""
    first = tree.parts[0] if tree.parts else tree
    if tree.head == "symbol":
        return tree.name if symbols(tree) else ""
    if tree.head == "text":
        return tree.name if re.fullmatch("[A-Z]{2,4}", tree.name) else ""
    if tree.head == "call" and tree.name == "abs":
        return label(first) if label(first).isupper() else ""  # |AB|, a length
    if tree.head != "product" or first.head != "symbol":
        return ""
    if len(tree.parts) == 2 and first.name in _FUNCTION_NAMES and first.name not in symbols(tree.parts[1]):
        return f"{first.name}({tree.parts[1]})"
    return "".join(part.name for part in tree.parts) if all(part.name.isupper() for part in tree.parts) else ""


def has_condition(braces: Tree) -> bool:
    r"""Return True for a set that is written as \{x \mid x > 3\}."""
    return _condition(braces) is not None


def _condition(braces: Tree) -> Tree | None:
    r"""Return the condition of \{x \mid x > 3\} or \{x \in R : x > 3, x \ne 4\}; None for a list of members."""
    first, *rest = braces.parts
    connective = "and"
    if first.head == "list" and not rest:
        connective, (first, *rest) = first.name, first.parts
    relations = first.name.split() if first.head == "relation" else []
    if ":" not in relations[:2] or relations[-1] == ":":
        return None
    bar = relations.index(":")
    condition = Tree("relation", first.parts[bar + 1 :], " ".join(relations[bar + 1 :]))
    condition = Tree("list", (condition, *rest), connective) if rest else condition
    domain = Tree("relation", first.parts[:2], relations[0])
    return Tree("intersection", (domain, condition)) if bar else condition


def _symbol(tree: Tree) -> RealSet | None:
    return {"reals": _LINE, "emptyset": _EMPTY}.get(tree.name)


def _sequence(tree: Tree) -> RealSet | None:
    if tree.name == "{}":
        condition = _condition(tree)
        return read_set(condition) if condition else _finite(tree.parts)
    return _interval(tree.parts, tree.name[0] == "[", tree.name[1] == "]") if len(tree.parts) == 2 else None


def _finite(members: tuple[Tree, ...]) -> RealSet | None:
    numbers = [_end(each) for member in members for each in alternatives(member) or (member,)]
    known = frozenset(number for number in numbers if isinstance(number, Fraction))
    return RealSet(known, known.__contains__) if all(isinstance(number, Fraction) for number in numbers) else None


def _interval(ends: tuple[Tree, ...], closed_below: bool, closed_above: bool) -> RealSet | None:
    low, high = map(_end, ends)
    if low is None or high is None or low > high or (low == high and not (closed_below and closed_above)):
        return None  # (2, 1) is a point
    if (closed_below and low == -inf) or (closed_above and high == inf):
        return None
    return RealSet(
        frozenset(end for end in (low, high) if isinstance(end, Fraction)),
        lambda x: (low < x or (closed_below and low == x)) and (x < high or (closed_above and x == high)),
    )


def _end(tree: Tree) -> Fraction | float | None:
    """Return an end of an interval; infinity is a float."""
    sign, bare = (-1, tree.parts[0]) if tree.head == "negative" else (1, tree)
    if bare == _INFINITY:
        return sign * inf
    if not is_scalar(tree) or symbols(tree):
        return None
    value = exact(tree)
    return approximate(tree) if value is None else value


def _relation(tree: Tree) -> RealSet | None:
    r"""Read x > 3 and 1 < x <= 2 and x \in [0, 1] and x \ne 2."""
    relations, operands = tree.name.split(), tree.parts
    if relations[0] in ("in", "notin", "=", "ne"):
        if len(relations) > 1 or not label(operands[0]):
            return None
        members = read_set(operands[1]) if relations[0] in ("in", "notin") else _finite(operands[1:])
        return members and (_combined("difference", _LINE, members) if relations[0] in ("notin", "ne") else members)
    if all(sign in (">", "ge") for sign in relations):
        relations, operands = relations[::-1], operands[::-1]
    elif any(sign not in ("<", "le") for sign in relations):
        return None
    relations = [_ORDERS[sign] for sign in relations]
    return _distance(relations, operands) or _between(relations, operands)


def _distance(relations: list[str], operands: tuple[Tree, ...]) -> RealSet | None:
    """Read an inequality with one absolute value: |x| < 2, |x - 1| >= 3."""
    if len(operands) != 2:
        return None
    is_below = _is_distance(operands[0])
    distance, bound = operands if is_below else operands[::-1]
    centre, radius = _centre(distance.parts[0]) if _is_distance(distance) else None, _end(bound)
    if centre is None or not isinstance(radius, Fraction) or radius <= 0:
        return None
    ball = _interval(tuple(map(number, (centre - radius, centre + radius))), *[(relations[0] == "le") == is_below] * 2)
    return ball if is_below or ball is None else _combined("difference", _LINE, ball)


def _is_distance(tree: Tree) -> bool:
    return tree.head == "call" and tree.name == "abs"


def _centre(tree: Tree) -> Fraction | None:
    """Return the number at which x, x - 1 or x + 1 is zero; None for other formulas."""
    first, *rest = tree.parts if tree.head == "sum" else (tree,)
    shift = [_end(term) for term in rest]
    if first.head != "symbol" or not symbols(first) or len(rest) > 1:
        return None
    if not shift:
        return Fraction(0)
    return -shift[0] if isinstance(shift[0], Fraction) else None


def _between(relations: list[str], operands: tuple[Tree, ...]) -> RealSet | None:
    """Read an ascending chain with a name in it: 3 < x or x <= 3 or 1 < x < 2."""
    if len(operands) == 2 and operands[0] != _INFINITY and label(operands[0]):
        relations, operands = ["<", *relations], (Tree("negative", (_INFINITY,)), *operands)
    elif len(operands) == 2:
        relations, operands = [*relations, "<"], (*operands, _INFINITY)
    if len(operands) != 3 or not label(operands[1]):
        return None
    return _interval((operands[0], operands[2]), relations[0] == "le", relations[1] == "le")


def _list(tree: Tree) -> RealSet | None:
    """Read conditions: "x < 1 or x > 2" is a union, "x > 1 and x < 2" an intersection, "x ≠ 1, 2" means both."""
    parts = tree.parts
    if parts[0].head == "relation" and parts[0].name == "ne" and all(part.head != "relation" for part in parts[1:]):
        parts = tuple(Tree("relation", (parts[0].parts[0], part), "ne") for part in (parts[0].parts[1], *parts[1:]))
    # x = 1, x = 2 are two solutions, and x = 1 and x = 2 are, too
    if any(part.head != "relation" or (part.name == "=" and tree.name != "or") for part in parts):
        return None
    if len({next(filter(None, map(label, part.parts)), "") for part in parts}) > 1:
        return None
    whole, *rest = map(read_set, parts)
    for members in rest:
        whole = whole and members and _combined("union" if tree.name == "or" else "intersection", whole, members)
    return whole


def _combination(tree: Tree) -> RealSet | None:
    left, right = map(read_set, tree.parts)
    return _combined(tree.head, left, right) if left and right else None


def _sum(tree: Tree) -> RealSet | None:
    r"""Read \mathbb{R} - \{2\}."""
    if len(tree.parts) != 2 or tree.parts[1].head != "negative":
        return None
    return _combination(Tree("difference", (tree.parts[0], *tree.parts[1].parts)))


def _combined(operation: str, left: RealSet, right: RealSet) -> RealSet:
    tests: dict[str, Callable[[Fraction], bool]] = {
        "union": lambda x: left.contains(x) or right.contains(x),
        "intersection": lambda x: left.contains(x) and right.contains(x),
        "difference": lambda x: left.contains(x) and not right.contains(x),
    }
    return RealSet(left.ends | right.ends, tests[operation])


_READERS: dict[str, Callable[[Tree], RealSet | None]] = {
    "symbol": _symbol,
    "sequence": _sequence,
    "list": _list,
    "relation": _relation,
    "union": _combination,
    "intersection": _combination,
    "difference": _combination,
    "sum": _sum,
}
