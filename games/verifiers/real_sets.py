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
from marl.games.verifiers.unknown_functions import is_unknown_call

_INFINITY = Formula("symbol", name="infty")
_MIRRORED = {">": "<", "ge": "le"}
_FUNCTION_NAMES = frozenset("fghpFGHPETSV")


@dataclass(frozen=True, slots=True)
class RealSet:
    """A set of real numbers."""

    ends: frozenset[Fraction]
    """All numbers at which membership in the set may change, such as the ends of an interval."""
    contains: Callable[[Fraction], bool]
    """Function that returns True for the members of the set."""


ALL_REALS = RealSet(frozenset(), lambda _: True)
"""Set of all real numbers."""
_EMPTY = RealSet(frozenset(), lambda _: False)


def is_same_set(left: RealSet, right: RealSet) -> bool:
    """Return True if two sets have the same members."""
    ends = sorted(left.ends | right.ends) or [Fraction(0)]
    midpoints = [(low + high) / 2 for low, high in pairwise(ends)]
    numbers = [*ends, *midpoints, ends[0] - 1, ends[-1] + 1]
    return [*map(left.contains, numbers)] == [*map(right.contains, numbers)]


def changes_at_every_endpoint(real_set: RealSet) -> bool:
    """Return True if membership in the set changes at every end, unlike at the end 2 of "x > 1 or x > 2"."""
    ends = sorted(real_set.ends)
    if not ends:
        return True
    midpoints = [(low + high) / 2 for low, high in pairwise(ends)]
    before, after = [ends[0] - 1, *midpoints], [*midpoints, ends[-1] + 1]
    for below, end, above in zip(before, ends, after, strict=True):
        if real_set.contains(below) == real_set.contains(end) == real_set.contains(above):
            return False
    return True


def read_set(tree: Formula) -> RealSet | None:
    """Return the set of real numbers described by `tree`, or None if `tree` describes no such set."""
    match tree.head:
        case "symbol":
            return {"reals": ALL_REALS, "emptyset": _EMPTY}.get(tree.name)
        case "sequence" if tree.name == "{}":
            condition = condition_of_set(tree)
            return read_set(condition) if condition else _finite_set(tree.operands)
        case "sequence" if len(tree.operands) == 2:
            return _interval(tree.operands, tree.name[0] == "[", tree.name[1] == "]")
        case "list":
            return _solutions_of_conditions(tree)
        case "relation":
            return _solution_set(tree)
        case "union" | "intersection" | "difference":
            left, right = map(read_set, tree.operands)
            return combine_sets(tree.head, left, right) if left and right else None
        case "sum" if len(tree.operands) == 2 and tree.operands[1].head == "negative":
            # Some answers write the difference of sets with a minus: \mathbb{R} - \{2\}.
            return read_set(Formula("difference", (tree.operands[0], *tree.operands[1].operands)))
    return None


def assigned_name(tree: Formula) -> str:
    """Return the name of an unknown (x), a function value (f(x)) or a length (AB), or "" for any other formula."""
    first = tree.operands[0] if tree.operands else tree
    if tree.head == "symbol":
        return tree.name if variables(tree) else ""
    if tree.head == "text":
        return tree.name if re.fullmatch("[A-Z]{2,4}", tree.name) else ""
    if tree.head == "call" and tree.name == "abs":
        return assigned_name(first) if assigned_name(first).isupper() else ""  # |AB| is the length of AB
    if tree.head == "sequence" and tree.name == "[]" and all(part.head == "symbol" for part in tree.operands):
        return f"[{', '.join(part.name for part in tree.operands)}]" if len(tree.operands) == 2 else ""  # commutator
    if tree.head == "power" and first.head == "symbol" and first.name.isupper():
        mark = "T" if tree.operands[1].name == "T" else "-1" if exact_value(tree.operands[1]) == -1 else ""
        return f"{first.name}^{mark}" if mark else ""  # A^T is a transposed matrix, and A^{-1} an inverse one
    if is_unknown_call(tree):
        return f"{tree.name}({', '.join(map(repr, tree.operands))})"
    if tree.head == "product" and first.head == "text" and len(tree.operands) == 2 and " " not in first.name:
        return f"{first.name}({tree.operands[1]})"  # Var(X)
    if tree.head != "product" or first.head != "symbol":
        return ""
    if len(tree.operands) == 2 and first.name in _FUNCTION_NAMES and first.name not in variables(tree.operands[1]):
        return f"{first.name}({tree.operands[1]})"
    letters = [part.name for part in tree.operands]
    return "".join(letters) if all(map(str.isupper, letters)) else ""


def condition_of_set(braces: Formula) -> Formula | None:
    r"""Return the condition in \{x \mid x > 3\} or \{x \in R : x > 3, x \ne 4\}, or None for a list of members."""
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


def _finite_set(elements: tuple[Formula, ...]) -> RealSet | None:
    """Return the set of the listed `elements`, or None if one of them is infinite or no number."""
    numbers = set[Fraction]()
    for member in elements:
        for alternative in sign_alternatives(member) or (member,):
            number = _endpoint_value(alternative)
            if not isinstance(number, Fraction):
                return None
            numbers.add(number)
    return RealSet(frozenset(numbers), numbers.__contains__)


def _interval(endpoints: tuple[Formula, ...], closed_below: bool, closed_above: bool) -> RealSet | None:
    """Return the interval between two `endpoints`, or None if no interval has these ends, as in the point (2, 1)."""
    low, high = map(_endpoint_value, endpoints)
    if low is None or high is None or low > high or (low == high and not (closed_below and closed_above)):
        return None
    if (closed_below and low == -inf) or (closed_above and high == inf):
        return None
    return RealSet(
        # Only finite bounds are end points of the set.
        frozenset(end for end in (low, high) if isinstance(end, Fraction)),
        lambda x: (low < x or (closed_below and low == x)) and (x < high or (closed_above and x == high)),
    )


def _endpoint_value(tree: Formula) -> Fraction | float | None:
    """Return the value of an end of an interval (infinity as a float), or None if `tree` is no number."""
    sign, bare = (-1, tree.operands[0]) if tree.head == "negative" else (1, tree)
    if bare == _INFINITY:
        return sign * inf
    if not is_scalar(tree) or variables(tree):
        return None
    value = exact_value(tree)
    return approximate(tree) if value is None else value


def _solution_set(relation: Formula) -> RealSet | None:
    r"""Return the numbers that satisfy x > 3, 1 < x <= 2, x \in [0, 1] or x \ne 2, or None for other relations."""
    signs, operands = relation.name.split(), relation.operands
    if signs[0] in ("in", "notin", "=", "ne"):
        if len(signs) > 1 or not assigned_name(operands[0]):
            return None
        members = read_set(operands[1]) if signs[0] in ("in", "notin") else _finite_set(operands[1:])
        if members is None or signs[0] in ("in", "="):
            return members
        return combine_sets("difference", ALL_REALS, members)
    if {">", "ge"}.issuperset(signs):
        signs, operands = [_MIRRORED[sign] for sign in reversed(signs)], operands[::-1]
    elif not {"<", "le"}.issuperset(signs):
        return None
    if solutions := _solutions_of_distance(operands, closed=signs[0] == "le"):
        return solutions
    # An inequality with a single bound, such as x < 2 or x > 2, gets infinity as its other bound.
    if len(operands) == 2 and operands[0] != _INFINITY and assigned_name(operands[0]):
        signs, operands = ["<", *signs], (Formula("negative", (_INFINITY,)), *operands)
    elif len(operands) == 2:
        signs, operands = [*signs, "<"], (*operands, _INFINITY)
    if len(operands) != 3 or not assigned_name(operands[1]):
        return None
    return _interval((operands[0], operands[2]), signs[0] == "le", signs[1] == "le")


def _solutions_of_distance(sides: tuple[Formula, ...], *, closed: bool) -> RealSet | None:
    """Return the solutions of an inequality that bounds an absolute value, such as |x| < 2 or 3 <= |x - 1|.

    None is returned if the inequality has another form, or a bound that is no positive rational number.

    Args:
        sides: sides of the inequality, the smaller side first.
        closed: True if both sides may be equal.
    """
    if len(sides) != 2:
        return None
    is_bounded_above = sides[0].head == "call" and sides[0].name == "abs"
    distance, bound = sides if is_bounded_above else sides[::-1]
    if distance.head != "call" or distance.name != "abs":
        return None
    inner = distance.operands[0]
    variable, *terms = inner.operands if inner.head == "sum" else (inner,)
    shift = _endpoint_value(terms[0]) if terms else Fraction(0)
    radius = _endpoint_value(bound)
    if variable.head != "symbol" or not variables(variable) or len(terms) > 1:
        return None
    if not isinstance(shift, Fraction) or not isinstance(radius, Fraction) or radius <= 0:
        return None
    # |x| > 2 is the complement of the closed interval, |x| >= 2 that of the open one.
    ends = (number_formula(-shift - radius), number_formula(-shift + radius))
    ball = _interval(ends, closed == is_bounded_above, closed == is_bounded_above)
    return ball if is_bounded_above or ball is None else combine_sets("difference", ALL_REALS, ball)


def _solutions_of_conditions(tree: Formula) -> RealSet | None:
    """Return the numbers that satisfy a list of conditions, or None if the list consists of solutions.

    "x < 1 or x > 2" is a union; "x > 1 and x < 2" and "x ≠ 1, 2" are intersections.
    """
    first, *others = tree.operands
    if first.head == "relation" and first.name == "ne" and "relation" not in [other.head for other in others]:
        name, first_excluded = first.operands
        first, *others = [Formula("relation", (name, excluded), "ne") for excluded in (first_excluded, *others)]
    names = set[str]()
    for condition in (first, *others):
        # Lists such as "x = 1, x = 2" and "x = 1 and x = 2" are solutions and describe no interval.
        if condition.head != "relation" or (condition.name == "=" and tree.name != "or"):
            return None
        names.add(next(filter(None, map(assigned_name, condition.operands)), ""))
    if len(names) > 1:
        return None
    result = read_set(first)
    for condition in others:
        members = read_set(condition)
        result = result and members and combine_sets("union" if tree.name == "or" else "intersection", result, members)
    return result


def combine_sets(operation: str, left: RealSet, right: RealSet) -> RealSet:
    """Return the union, intersection or difference of two sets."""
    tests: dict[str, Callable[[Fraction], bool]] = {
        "union": lambda x: left.contains(x) or right.contains(x),
        "intersection": lambda x: left.contains(x) and right.contains(x),
        "difference": lambda x: left.contains(x) and not right.contains(x),
    }
    return RealSet(left.ends | right.ends, tests[operation])
