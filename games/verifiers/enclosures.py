"""Values of formulas without variables: exact rational numbers, or certified intervals of a chosen precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from math import ceil, comb, factorial, floor
from operator import add, mul
from typing import Any

from flint import acb, arb, ctx, fmpq

from marl.games.verifiers.closed_form import exact_operation
from marl.games.verifiers.formulas import Formula

MAX_BITS = 20_000
"""Maximum size of a value's binary exponent, and of a precision, in bits: values lie between 2^-20000 and 2^20000."""
MAX_FACTORIAL = 1000
"""Maximum argument of a factorial or a binomial coefficient; 1000! has 2568 digits."""
UNKNOWN_BASE = Fraction("7.382905614382971526")
r"""Base of \log without a base: neither e nor 10, so that \log equals neither \ln nor \log_{10}."""
Value = Fraction | arb | acb
"""Value of a formula: exact, or a real or complex interval that contains the exact value."""


class UndefinedError(ArithmeticError):
    """Error for a formula without a finite value, such as 1/0, and for one whose intervals show no finite value."""


def interval_of_formula(tree: Formula, precision: int, *, real: bool) -> Value:
    """Return the value of `tree`, a formula without variables.

    Args:
        precision: working precision of intervals, in bits.
        real: True if roots and logarithms of negative numbers have no value, except odd roots.

    Raises:
        UndefinedError: the formula has no finite value.
    """
    with ctx.workprec(precision):
        return _enclose(tree, real)


def contains_zero(value: Value) -> bool:
    """Return True if `value` is zero, or an interval with zero in it."""
    return value == 0 if isinstance(value, Fraction) else bool(value.contains(0))


def is_below_power(value: Value, exponent: float) -> bool:
    """Return True if every number in the interval `value` is less than 2^`exponent` in absolute value."""
    return (
        abs(value) < Fraction(2) ** int(exponent) if isinstance(value, Fraction) else log2_magnitude(value) < exponent
    )


def log2_magnitude(value: Value) -> float:
    """Return an upper bound for the binary logarithm of |`value`|; minus infinity for zero."""
    if isinstance(value, Fraction):
        return float(value.numerator.bit_length() - value.denominator.bit_length() + 1) if value else -float("inf")
    mantissa, exponent = value.abs_upper().man_exp()
    return float(int(exponent) + int(mantissa).bit_length()) if mantissa else -float("inf")


def to_interval(value: Value) -> Any:
    """Return `value` as an interval of the current precision."""
    return arb(fmpq(*value.as_integer_ratio())) if isinstance(value, Fraction) else value


def _enclose(tree: Formula, real: bool) -> Value:
    if tree.head == "number":
        return tree.value
    if tree.head == "symbol":
        if tree.name not in _CONSTANTS:
            raise UndefinedError(f"{tree.name} has no value")
        if real and tree.name == "i":
            raise UndefinedError("not real")
        return _CONSTANTS[tree.name]()
    if tree.head == "measured" and tree.name not in ("°", "%"):
        raise UndefinedError("units have no value")
    if tree.head == "sequence" and (tree.name != "[]" or len(tree.operands) != 1):
        raise UndefinedError("a list has no value")
    if tree.head == "power" and tree.operands[0] == _E:
        return _require_finite(to_interval(_enclose(tree.operands[-1], real)).exp(), real)
    values = [_enclose(operand, real) for operand in tree.operands]
    exact = [value for value in values if isinstance(value, Fraction)]
    if len(exact) == len(values):
        value = _exact_call(tree.name, exact) if tree.head == "call" else exact_operation(tree, exact)
        if value is not None:
            return value
    operation = _FUNCTIONS.get(tree.name) if tree.head == "call" else _OPERATIONS.get(tree.head)
    if tree.head == "measured":
        return to_interval(values[0]) * (arb.pi() / 180 if tree.name == "°" else arb(fmpq(1, 100)))
    if operation is None:
        raise UndefinedError(f"{tree.head} {tree.name} has no value")
    if tree.head == "power":
        return _require_finite(_power(values[0], values[1], real), real)
    try:
        return _require_finite(operation(*values), real)
    except TypeError as error:  # the function takes another number of arguments, or accepts no complex numbers
        raise UndefinedError(str(error)) from error


def _require_finite(value: Any, real: bool) -> Value:
    """Return `value`, or raise UndefinedError if it is not finite, out of range, or complex where only reals count."""
    if not isinstance(value, Fraction):
        if not value.is_finite() or (abs(log2_magnitude(value)) > MAX_BITS and not contains_zero(value)):
            raise UndefinedError("out of range")
        if real and isinstance(value, acb):
            raise UndefinedError("not real")
    return value


def _exact_call(name: str, arguments: list[Fraction]) -> Fraction | None:
    """Return the exact value of a function of rational numbers, or None if it is not among the exact ones."""
    first = arguments[0]
    integers = all(argument.denominator == 1 for argument in arguments)
    match name, len(arguments):
        case "abs", 1:
            return abs(first)
        case "floor" | "ceil", 1:
            return Fraction(floor(first) if name == "floor" else ceil(first))
        case "max" | "min", _:
            return max(arguments) if name == "max" else min(arguments)
        case (("factorial" | "double factorial"), 1) if integers and 0 <= first <= MAX_FACTORIAL:
            step = 1 if name == "factorial" else 2
            return Fraction(factorial(int(first)) if step == 1 else reduce(mul, range(int(first), 0, -2), 1))
        case "binom", 2 if integers and 0 <= arguments[1] <= MAX_FACTORIAL and 0 <= first <= MAX_FACTORIAL:
            return Fraction(comb(int(first), int(arguments[1])))
    return None


def _divide(over: Value, under: Value) -> Value:
    if contains_zero(under):
        raise UndefinedError("division by zero")
    return to_interval(over) / to_interval(under)


def _power(base: Value, exponent: Value, real: bool) -> Value:
    """Return a power that is not rational. The base may be negative for exponents with odd denominators."""
    if contains_zero(base):
        raise UndefinedError("a power of zero")
    power = to_interval(exponent)
    if log2_magnitude(power) > 64 or abs(log2_magnitude(base)) * abs(float(power.abs_upper())) > MAX_BITS:
        raise UndefinedError("out of range")
    interval = to_interval(base)
    if not real or isinstance(interval, acb) or interval > 0:
        if isinstance(interval, arb) and interval < 0:
            interval = acb(interval)
        return interval**power
    if not isinstance(exponent, Fraction) or exponent.denominator % 2 == 0:
        raise UndefinedError("not real")
    if exponent.denominator == 1:
        return interval ** int(exponent)
    return (-interval) ** power * (-1 if exponent.numerator % 2 else 1)


def _root(radicand: Value, index: Value) -> Value:
    if not isinstance(index, Fraction) or index.denominator != 1 or not 1 <= index <= 1000:
        raise UndefinedError("no root")  # answers have no roots of such a large index, which would take long to compute
    interval, number = to_interval(radicand), int(index)
    if isinstance(interval, acb) or interval > 0:
        return interval.root(number)
    if interval < 0:
        # An even root of a negative number is complex. `_require_finite` refuses it if only real numbers count.
        return -(-interval).root(number) if number % 2 else acb(interval).root(number)
    raise UndefinedError("the root of a number that may be zero")


def _logarithm(number: Value, base: Value = UNKNOWN_BASE) -> Value:
    if contains_zero(number) or contains_zero(base):
        raise UndefinedError("no logarithm")
    under = to_interval(base).log()
    if contains_zero(under):
        raise UndefinedError("no logarithm")
    return _natural_logarithm(number) / under


def _natural_logarithm(number: Value) -> Value:
    interval = to_interval(number)
    return (acb(interval) if isinstance(interval, arb) and interval < 0 else interval).log()


def _floor_or_ceiling(number: Value, name: str) -> Value:
    """Return the floor or ceiling of an interval, which must not contain an integer."""
    if not isinstance(number, arb):
        raise UndefinedError("no real number")
    integer = (number.floor() if name == "floor" else number.ceil()).unique_fmpz()
    if integer is None:
        raise UndefinedError("too close to an integer")
    return Fraction(int(integer))


def _factorial(number: Value) -> Value:
    """Return Γ(`number` + 1), the factorial of a number that need not be an integer."""
    if log2_magnitude(number) > 10:
        raise UndefinedError("out of range")
    return (to_interval(number) + 1).gamma()


def _binomial(upper: Value, lower: Value) -> Value:
    difference = to_interval(upper) - to_interval(lower)
    return _divide(_factorial(upper), to_interval(_factorial(lower)) * to_interval(_factorial(difference)))


def _min_or_max(values: tuple[Value, ...], name: str) -> Value:
    intervals = [arb(0) + to_interval(value) for value in values]
    return reduce(lambda left, right: left.max(right) if name == "max" else left.min(right), intervals)


def _interval_method(name: str) -> Callable[..., Any]:
    """Return the function that calls the method `name` of an interval."""

    def call_method(argument: Value) -> Any:
        return _METHODS[isinstance(interval := to_interval(argument), acb), name](interval)

    return call_method


_E = Formula("symbol", name="e")
_CONSTANTS: Mapping[str, Callable[[], Value]] = {"pi": arb.pi, "e": arb.const_e, "i": lambda: acb(0, 1)}
_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "sum": lambda *terms: reduce(add, map(to_interval, terms)),
    "negative": lambda part: -part,
    "product": lambda *factors: reduce(mul, map(to_interval, factors)),
    "quotient": _divide,
    "power": _power,
    "root": _root,
    "sequence": lambda part: part,
}
_NAMES = ["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"]
_INVERSES = {"sin": "asin", "cos": "acos", "tan": "atan", "sinh": "asinh", "cosh": "acosh", "tanh": "atanh"}
_METHODS = {
    **{(False, name): getattr(arb, name) for name in (*_NAMES, *_INVERSES.values())},
    **{(True, name): getattr(acb, name) for name in (*_NAMES, *_INVERSES.values())},
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _interval_method(name) for name in _NAMES},
    **{f"arc{name}": _interval_method(method) for name, method in _INVERSES.items()},
    "arccot": lambda argument: _interval_method("atan")(_divide(Fraction(1), argument)),
    "arcsec": lambda argument: _interval_method("acos")(_divide(Fraction(1), argument)),
    "arccsc": lambda argument: _interval_method("asin")(_divide(Fraction(1), argument)),
    "ln": _natural_logarithm,
    "log": _logarithm,
    "abs": lambda argument: abs(to_interval(argument)),
    "floor": lambda argument: _floor_or_ceiling(argument, "floor"),
    "ceil": lambda argument: _floor_or_ceiling(argument, "ceil"),
    "factorial": _factorial,
    "binom": _binomial,
    "max": lambda *arguments: _min_or_max(arguments, "max"),
    "min": lambda *arguments: _min_or_max(arguments, "min"),
}
