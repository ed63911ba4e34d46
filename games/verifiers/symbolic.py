"""Equality of single formulas with three outcomes: equal, different, or unknown.

Rational numbers are compared exactly. Other numbers are enclosed in intervals that shrink until they part, which proves
a difference, or until they are below the smallest value that a difference could have (`zero_bounds`), which shows
equality of algebraic numbers. Equality of other numbers must also follow from laws (`formal_points`). Formulas with
variables are compared at random rational points (Schwartz 1980, Zippel 1979). Everything is bounded in bits and steps,
so that no verdict depends on the load of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from random import Random
from zlib import crc32

from flint import arb

from marl.games.verifiers.closed_form import exact_value, is_scalar, variables
from marl.games.verifiers.copied_formulas import in_canonical_order
from marl.games.verifiers.enclosures import (
    MAX_BITS,
    UndefinedError,
    contains_zero,
    interval_of_formula,
    is_below_power,
    to_interval,
)
from marl.games.verifiers.formal_points import FormalPoint, NoAlgebraicLawError
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.unknown_functions import with_symbols_for_unknown_calls
from marl.games.verifiers.zero_bounds import ZeroBound

_FIRST_PRECISION = 256
"""Precision of the first intervals, in bits: most different formulas part there."""
_POINTS = 12
"""Number of random points at which two formulas are compared."""
_POINTS_OF_BRANCHES = 60
"""Number of points for functions with branches, which may differ between a few points only."""
_WITH_BRANCHES = frozenset(["abs", "max", "min", "floor", "ceil"])
_FORMAL_POINTS = 3
"""Number of formal points at which formulas with transcendental values must agree."""
_RANGES = ((0, 3), (-4, 0), (0, 3), (-4, 4), (0, 1), (-1, 0), (-1, 1), (-16, 16))
"""Limits of the coordinates at point 0, 1, ...: |x| differs from x at the second point."""
_MIN_DEFINED = 3
"""Minimum number of points at which both formulas must have a value."""


class Comparison(Enum):
    """Outcome of the comparison of two formulas."""

    EQUAL = "equal"
    """The formulas have the same value wherever they are compared."""
    DIFFERENT = "different"
    """The formulas differ at a point, or are never both defined at a point."""
    UNKNOWN = "unknown"
    """The formulas agree to the number of bits compared, which proves neither equality nor a difference."""

    def __bool__(self) -> bool:
        """Return True for `EQUAL` alone, so that an unknown outcome rejects an answer."""
        return self is Comparison.EQUAL


def compare(gold: Formula, answer: Formula) -> Comparison:
    """Return EQUAL if two formulas are equal at all points at which both have values."""
    gold, answer = with_symbols_for_unknown_calls((gold, answer), _is_same_argument)
    if variables(answer) - variables(gold):
        return Comparison.DIFFERENT
    if in_canonical_order(gold) == in_canonical_order(answer):
        return Comparison.EQUAL
    real = "i" not in gold.symbols() | answer.symbols()
    names, seed = variables(gold), _seed_of_points(answer)
    both = defined = 0
    is_proven = True
    has_branches = any(part.name in _WITH_BRANCHES for tree in (gold, answer) for part in tree.walk())
    count = _POINTS_OF_BRANCHES if has_branches else _POINTS
    for index in range(count if names else 1):
        right, stated = _at_point(gold, names, index, seed), _at_point(answer, names, index, seed)
        if not _is_defined(right, real):
            continue
        defined += 1
        if not _is_defined(stated, real):
            continue
        # An unproven comparison takes the most bits, so the points after it are compared at lower precision.
        at_point, is_certain = (_compare_values if is_proven else _compare_first_bits)(right, stated, real=real)
        if at_point is Comparison.DIFFERENT or (at_point is Comparison.UNKNOWN and is_certain):
            return at_point
        both += 1
        is_proven &= is_certain
    # An answer that is undefined at most points would otherwise be equal to any right answer.
    if both < (min(_MIN_DEFINED, defined) or 1) or 2 * both < defined:
        return Comparison.DIFFERENT
    if is_proven or _agrees_formally(lambda point: point.evaluate(difference(gold, answer)), seed, real=real):
        return Comparison.EQUAL
    is_same_text = in_canonical_order(_with_exact_parts(gold)) == in_canonical_order(_with_exact_parts(answer))
    return Comparison.EQUAL if is_same_text else Comparison.UNKNOWN


def _with_exact_parts(tree: Formula) -> Formula:
    """Return `tree` with a number for each part that has a rational value, such as 10^(-50)."""
    value = exact_value(tree)
    if value is not None:
        return number_formula(value)
    return Formula(tree.head, tuple(map(_with_exact_parts, tree.operands)), tree.name, tree.value)


def _is_same_argument(left: Formula, right: Formula) -> bool:
    """Return True if two arguments of an unknown function are equal; other than scalars they must be alike."""
    is_alike = in_canonical_order(left) == in_canonical_order(right)
    return is_alike or (is_scalar(left) and is_scalar(right) and is_equal(left, right) and is_equal(right, left))


def is_equal(gold: Formula, answer: Formula) -> bool:
    """Return True if two formulas are shown to be equal."""
    return compare(gold, answer) is Comparison.EQUAL


def differs_by_constant(gold: Formula, answer: Formula) -> Comparison:
    """Return EQUAL if two formulas differ by a constant at all points at which both have values."""
    gold, answer = with_symbols_for_unknown_calls((gold, answer), _is_same_argument)
    names = variables(gold)
    if variables(answer) != names:
        return Comparison.DIFFERENT
    shifts, defined, seed = list[Formula](), 0, _seed_of_points(answer)
    for index in range(_POINTS):
        right, stated = _at_point(gold, names, index, seed), _at_point(answer, names, index, seed)
        defined += _is_defined(right, True)
        if _is_defined(right, True) and _is_defined(stated, True):
            shifts.append(difference(right, stated))
    if len(shifts) < _MIN_DEFINED or 2 * len(shifts) < defined:
        return Comparison.DIFFERENT
    first = FormalPoint(0, seed)
    gap = difference(gold, answer)
    return _combined_outcome(
        (_compare_values(shifts[0], other, real=True) for other in shifts[1:]),
        lambda: _agrees_formally(lambda point: difference(point.evaluate(gap), first.evaluate(gap)), seed, real=True),
    )


def has_same_zeros(left: Formula, right: Formula) -> Comparison:
    """Return EQUAL if the equations `left` = 0 and `right` = 0 have the same solutions.

    One side must be a multiple of the other, by a number, or by a variable that is never zero in a solution, as x is
    in xy = 12 and y = 12/x.
    """
    left, right = with_symbols_for_unknown_calls((left, right), _is_same_argument)
    if variables(left) != variables(right):
        return Comparison.DIFFERENT
    outcome = is_multiple(left, right)
    if outcome is not Comparison.DIFFERENT:
        return outcome
    for name in variables(left):
        variable = Formula("symbol", name=name)
        left_product, right_product = Formula("product", (left, variable)), Formula("product", (right, variable))
        if is_multiple(left_product, right) or is_multiple(left, right_product):
            is_zero = _is_zero_at_zero(left, name) or _is_zero_at_zero(right, name)
            return Comparison.DIFFERENT if is_zero else Comparison.EQUAL
    return Comparison.DIFFERENT


def is_multiple(left: Formula, right: Formula) -> Comparison:
    """Return EQUAL if the ratio of two formulas is the same number at all points."""
    names, seed = variables(left), _seed_of_points(right)
    pairs = list[tuple[Formula, Formula]]()
    for index in range(_POINTS):
        pair = _at_point(left, names, index, seed), _at_point(right, names, index, seed)
        if _is_defined(pair[0], True) and _is_defined(pair[1], True):
            pairs.append(pair)
    nonzero = next(((a, b) for a, b in pairs if _is_nonzero(a) and _is_nonzero(b)), None)
    if len(pairs) < _MIN_DEFINED or nonzero is None:
        return Comparison.DIFFERENT
    first, second = nonzero
    # Two formulas are proportional if left(p) * right(p0) = left(p0) * right(p) at every point p.
    start = FormalPoint(0, seed)

    def formal_defect(point: FormalPoint) -> Formula:
        products = (point.evaluate(left), start.evaluate(right)), (start.evaluate(left), point.evaluate(right))
        return difference(*(Formula("product", factors) for factors in products))

    products = ((Formula("product", (a, second)), Formula("product", (first, b))) for a, b in pairs)
    return _combined_outcome(
        (_compare_values(*pair, real=True) for pair in products),
        lambda: _agrees_formally(formal_defect, seed, real=True),
    )


def _is_nonzero(tree: Formula) -> bool:
    return _compare_values(tree, number_formula(0), real=True)[0] is Comparison.DIFFERENT


def _is_zero_at_zero(equation: Formula, name: str) -> bool:
    """Return True if `equation` is zero wherever the variable `name` is zero."""
    point = dict.fromkeys(variables(equation), Fraction("2.718")) | {name: Fraction(0)}
    number = substitute(equation, point)
    return _is_defined(number, True) and bool(compare_numbers(number, number_formula(0), real=True))


def compare_numbers(left: Formula, right: Formula, *, real: bool) -> Comparison:
    """Return EQUAL if two formulas without variables have the same value."""
    outcome, is_proven = _compare_values(left, right, real=real)
    if outcome is Comparison.DIFFERENT or is_proven:
        return outcome
    is_same = _agrees_formally(lambda point: point.evaluate(difference(left, right)), _seed_of_points(right), real=real)
    return Comparison.EQUAL if is_same else Comparison.UNKNOWN


def _compare_values(left: Formula, right: Formula, *, real: bool) -> tuple[Comparison, bool]:
    """Return (outcome of comparing two formulas without variables, True if this outcome is proven).

    A difference is always proven; equality is proven for algebraic numbers. Other numbers are EQUAL, but not proven to
    be, if they agree to as many bits as algebraic numbers of their size would need. Laws may give the proof.
    """
    if left == right:
        return Comparison.EQUAL, True
    tree = difference(left, right)
    try:
        value = interval_of_formula(tree, _FIRST_PRECISION, real=real)
        if not contains_zero(value):
            return Comparison.DIFFERENT, True
        if value == 0:
            return Comparison.EQUAL, True
        bound = ZeroBound(tree, real=real)
        if not bound.required_precision <= MAX_BITS:  # `not <=` includes NaN
            value = interval_of_formula(tree, MAX_BITS, real=real)
            return (Comparison.UNKNOWN, bound.proven) if contains_zero(value) else (Comparison.DIFFERENT, True)
        value = interval_of_formula(tree, max(_FIRST_PRECISION, int(bound.required_precision)), real=real)
    except UndefinedError:
        return Comparison.UNKNOWN, False
    if not contains_zero(value):
        return Comparison.DIFFERENT, True
    return Comparison.EQUAL if is_below_power(value, -bound.bound_bits) else Comparison.UNKNOWN, bound.proven


def _compare_first_bits(left: Formula, right: Formula, *, real: bool) -> tuple[Comparison, bool]:
    """Return DIFFERENT if two formulas without variables differ in their first bits, else UNKNOWN; and False."""
    try:
        value = interval_of_formula(difference(left, right), _FIRST_PRECISION, real=real)
    except UndefinedError:
        return Comparison.UNKNOWN, False
    return Comparison.UNKNOWN if contains_zero(value) else Comparison.DIFFERENT, False


def _agrees_formally(defect: Callable[[FormalPoint], Formula], seed_text: str, *, real: bool) -> bool:
    """Return True if `defect`, a value that is zero for equal formulas, is proven to be zero at all formal points."""
    for index in range(1, _FORMAL_POINTS + 1):
        try:
            tree = defect(FormalPoint(index, seed_text))
        except NoAlgebraicLawError:
            return False
        outcome, is_proven = _compare_values(tree, number_formula(0), real=real)
        if outcome is not Comparison.EQUAL or not is_proven:
            return False
    return True


def _combined_outcome(outcomes: Iterable[tuple[Comparison, bool]], prove: Callable[[], bool]) -> Comparison:
    """Return the first DIFFERENT or certain UNKNOWN; else EQUAL if the values or `prove` prove it, else UNKNOWN."""
    is_proven = True
    for outcome, is_certain in outcomes:
        if outcome is Comparison.DIFFERENT or (outcome is Comparison.UNKNOWN and is_certain):
            return outcome
        is_proven &= is_certain
    return Comparison.EQUAL if is_proven or prove() else Comparison.UNKNOWN


@lru_cache(1024)
def _seed_of_points(answer: Formula) -> str:
    """Return the seed of the random points, derived from `answer`: no answer can be fitted to its own points."""
    return str(crc32(repr(answer).encode()))


def approximate(tree: Formula) -> Fraction | None:
    """Return the value of a formula without variables, rounded to 40 decimals, or None if it has no real value."""
    try:
        value = interval_of_formula(tree, _FIRST_PRECISION, real=True)
    except UndefinedError:
        return None
    if isinstance(value, Fraction):
        return value
    scaled = to_interval(value) * arb(10) ** 40  # `value` is real, because complex values are undefined here
    mantissa, exponent = scaled.mid().man_exp()
    return Fraction(round(Fraction(int(mantissa)) * Fraction(2) ** int(exponent)), 10**40)


def difference(left: Formula, right: Formula) -> Formula:
    """Return the formula `left` minus `right`."""
    return Formula("sum", (left, Formula("negative", (right,))))


def _is_defined(tree: Formula, real: bool) -> bool:
    """Return True if `tree`, a formula without variables, has a value."""
    try:
        interval_of_formula(tree, _FIRST_PRECISION, real=real)
    except UndefinedError:
        return False
    return True


def _at_point(tree: Formula, names: frozenset[str], point_index: int, seed: str) -> Formula:
    """Return `tree` with the coordinates of random point number `point_index` for the variables `names`."""
    random = Random(f"{seed} {point_index}")
    low, high = _RANGES[point_index % len(_RANGES)]
    # Coordinates have few bits, so that most values are exact rational numbers.
    point = {name: Fraction(random.randint(1024 * low, 1024 * high), 1024) for name in sorted(names)}
    if point_index % 3 == 2:  # every third point consists of integers, for (-1)^n and n!
        point = {name: Fraction(random.randint(1, 12)) for name in sorted(names)}
    return substitute(tree, point)


def substitute(tree: Formula, point: Mapping[str, Fraction]) -> Formula:
    """Return `tree` with numbers for the variables in `point`."""
    if tree.head == "symbol" and tree.name in point:
        return number_formula(point[tree.name])
    operands = tuple(substitute(operand, point) for operand in tree.operands)
    return Formula(tree.head, operands, tree.name, tree.value)
