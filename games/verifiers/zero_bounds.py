"""Lower bounds for the absolute value of a formula that is not zero.

For algebraic numbers the bound is the theorem of Burnikel, Funke, Mehlhorn, Schirra and Schmitt, "A separation bound
for real algebraic expressions" (2001, 2009): a value E = U/L of degree at most D is 0, or |E| >= 1 / (u^(D-1) l). For
values of other functions, such as logarithms, no theorem is known; they count as algebraic numbers of degree 1 and the
size of their arguments, and the bound is squared. That bound only says to how many bits such values are compared: it
proves no equality (`formal_points` does).
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from math import inf, lcm, log2, prod
from operator import add

from marl.games.verifiers.closed_form import exact_value
from marl.games.verifiers.enclosures import UndefinedError, Value, interval_of_formula, log2_magnitude
from marl.games.verifiers.formulas import TRIGONOMETRIC, Formula, number_formula

_LogBounds = tuple[float, float]
"""(log2 u, log2 l) of a value U/L: u and l bound the absolute values of the conjugates of U and of L."""
_SPARE_BITS = 64
_MAX_INDEX = 64
"""Maximum index (degree) of a root whose value counts as algebraic."""


class ZeroBound:
    """Lower bound for the absolute value of one formula without variables, unless its value is 0.

    Attributes:
        degrees: degree of every field extension that the formula uses, such as the root of 2.
        proven: False if the formula holds a value that is no known algebraic number.
    """

    def __init__(self, tree: Formula, *, real: bool) -> None:
        self.degrees = dict[object, int]()
        self.proven = True
        self._real = real
        self._upper, self._lower = self._log_bounds(tree)

    @property
    def bound_bits(self) -> float:
        """Number B such that the absolute value, if not 0, is at least 2^-B; infinity without a useful bound."""
        degree = prod(self.degrees.values())
        bits = (degree - 1) * self._upper + self._lower + _SPARE_BITS
        return bits if self.proven else 2 * bits

    @property
    def required_precision(self) -> float:
        """Precision [bits] at which the interval of a zero value falls below the bound."""
        return self.bound_bits + self._upper + self._lower + _SPARE_BITS

    def _log_bounds(self, tree: Formula) -> _LogBounds:
        if tree.head == "number":
            return _bounds_of_rational(tree.value)
        if tree.head == "symbol" and tree.name == "i":
            self.degrees["i"] = 2
            return 0.0, 0.0
        if tree.head == "call":
            return self._bounds_of_call(tree)
        if tree.head == "measured" and tree.name == "°":
            return self._bounds_of_value(tree)
        operands = [self._log_bounds(operand) for operand in tree.operands]
        match tree.head:
            case "sum":
                lower = sum(below for _, below in operands)
                return max(above + lower - below for above, below in operands) + log2(len(operands)), lower
            case "product":
                return sum(above for above, _ in operands), sum(below for _, below in operands)
            case "quotient":
                (above, below), (above_divisor, below_divisor) = operands
                return above + below_divisor, below + above_divisor
            case "negative" | "sequence":
                return operands[0]
            case "measured":
                return operands[0][0], operands[0][1] + log2(100)
            case "root":
                return self._bounds_of_root(tree, operands[0], exact_value(tree.operands[1]))
            case "power":
                return self._bounds_of_power(tree, operands[0])
        return self._bounds_of_value(tree)

    def _bounds_of_root(self, tree: Formula, radicand: _LogBounds, index: Fraction | None) -> _LogBounds:
        if index is None or index > _MAX_INDEX:
            return self._bounds_of_value(tree)
        if exact_value(tree) is None:
            self.degrees[tree.operands[0], index] = int(index)
        (above, below), degree = radicand, int(index)
        if above >= below:
            return (above + (degree - 1) * below) / degree, below
        return above, ((degree - 1) * above + below) / degree

    def _bounds_of_power(self, tree: Formula, base: _LogBounds) -> _LogBounds:
        exponent = exact_value(tree.operands[1])
        if exponent is None or exponent.denominator > _MAX_INDEX:
            return self._bounds_of_value(tree)
        if exponent.denominator > 1:
            index = Fraction(exponent.denominator)
            base = self._bounds_of_root(Formula("root", (tree.operands[0], number_formula(index))), base, index)
        above, below = base if exponent > 0 else base[::-1]
        return above * abs(exponent.numerator), below * abs(exponent.numerator)

    def _bounds_of_call(self, tree: Formula) -> _LogBounds:
        """Return the bounds of a function's value: cos and sin of rational multiples of π are algebraic."""
        turns = _multiple_of_pi(tree.operands[0]) if tree.name in TRIGONOMETRIC else None
        if turns is not None and not tree.name.startswith("arc") and not tree.name.endswith("h"):
            order = lcm(4, 2 * turns.denominator)
            self.degrees["roots of unity"] = lcm(self.degrees.get("roots of unity", 1), order)
            return (1.0, 1.0) if tree.name in ("sin", "cos") else (2.0, 2.0)
        if tree.name == "abs" and self._real:
            return self._log_bounds(tree.operands[0])
        return self._bounds_of_value(tree)

    def _bounds_of_value(self, tree: Formula) -> _LogBounds:
        """Return the bounds of a value without a theorem, from its magnitude and the bounds of its operands."""
        value = _interval_or_none(tree, real=self._real)
        if value is None:
            self.proven = False
            return inf, inf
        if isinstance(value, Fraction):
            return _bounds_of_rational(value)
        self.proven = False
        magnitude = log2_magnitude(value)
        inner = reduce(add, (sum(self._log_bounds(operand)) for operand in tree.operands), 2.0)
        return inner + max(0.0, magnitude), inner + max(0.0, -magnitude)


def _bounds_of_rational(value: Fraction) -> _LogBounds:
    return float(value.numerator.bit_length()), float(value.denominator.bit_length() - 1)


def _interval_or_none(tree: Formula, *, real: bool) -> Value | None:
    try:
        return interval_of_formula(tree, 64, real=real)
    except UndefinedError:
        return None


def _multiple_of_pi(tree: Formula) -> Fraction | None:
    """Return q if `tree` is written as q times π or as degrees, or None for any other formula."""
    if tree.head == "measured" and tree.name == "°":
        degrees = exact_value(tree.operands[0])
        return None if degrees is None else degrees / 180
    values = [exact_value(_with_number_for_pi(tree, number)) for number in (1, 2, 3)]
    first, second, third = values
    if first is None or second != 2 * first or third != 3 * first:
        return None
    return first


def _with_number_for_pi(tree: Formula, replacement: int) -> Formula:
    """Return `tree` with π replaced by `replacement`."""
    if tree.head == "symbol" and tree.name == "pi":
        return number_formula(replacement)
    operands = tuple(_with_number_for_pi(operand, replacement) for operand in tree.operands)
    return Formula(tree.head, operands, tree.name, tree.value)
