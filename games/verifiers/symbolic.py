"""Equality of formulas by values: two formulas are equal if they agree to 45 digits at random points.

The test is that of Schwartz (1980) and Zippel (1979). No formula is transformed, so that every verdict takes bounded
time, which computer algebra cannot promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import Any

from mpmath import MPContext
from mpmath.libmp import ComplexResult

from marl.games.verifiers.closed_form import exact_value, variables
from marl.games.verifiers.formulas import Formula

_MP = MPContext()
_MP.prec = 260
"""Precision in bits: 78 digits."""
_TOLERANCE = _MP.mpf(10) ** -45
_MAX_BITS = 20_000
"""Maximum size of a value's binary exponent: values lie between 2^-20000 and 2^20000."""
_POINTS = 12
_MIN_DEFINED = 3
"""Minimum number of points at which both formulas must have a value."""
_UNKNOWN_BASE = _MP.mpf("7.382905614382971526")
r"""Base of \log without a base: neither e nor 10, so that \log equals neither \ln nor \log_{10}."""


class UndefinedError(ArithmeticError):
    """A formula has no value at a point."""


def evaluate(tree: Formula, point: Mapping[str, Any], real: bool) -> Any:
    """Return the value of `tree` as a number of mpmath.

    Args:
        point: value of each variable.
        real: True if roots and logarithms of negative numbers have no value, except odd roots.

    Raises:
        UndefinedError: the formula has no finite value at `point`.
    """
    rational = exact_value(tree)
    result = _quotient(*rational.as_integer_ratio()) if rational is not None else _operate(tree, point, real)
    if not _MP.isfinite(result) or (result and abs(_MP.mag(result)) > _MAX_BITS):
        raise UndefinedError("out of range")
    if real and isinstance(result, _MP.mpc):
        raise UndefinedError("not real")
    return result


def is_equal(gold: Formula, answer: Formula) -> bool:
    """Return True if two formulas are equal at all points at which both have values."""
    if variables(answer) - variables(gold):
        return False
    real = not any(part == Formula("symbol", name="i") for tree in (gold, answer) for part in tree.walk())
    names = variables(gold)
    both = defined = 0
    for index in range(_POINTS if names else 1):
        right, stated = _value_at(gold, names, index, real), _value_at(answer, names, index, real)
        defined += right is not None
        if right is None or stated is None:
            continue
        if abs(right - stated) > _TOLERANCE * max(abs(right), abs(stated), _TOLERANCE):
            return False
        both += 1
    # An answer without values at most points of the right answer would be equal to everything.
    return both >= (min(_MIN_DEFINED, defined) or 1) and 2 * both >= defined


def differs_by_constant(gold: Formula, answer: Formula) -> bool:
    """Return True if two formulas differ by a constant at all points at which both have values."""
    names = variables(gold)
    if variables(answer) != names:
        return False
    shifts, sizes, defined = list[Any](), list[Any](), 0
    for index in range(_POINTS):
        right, stated = _value_at(gold, names, index, real=True), _value_at(answer, names, index, real=True)
        defined += right is not None
        if right is None or stated is None:
            continue
        shifts.append(right - stated)
        sizes.append(max(abs(right), abs(stated), 1))
        # The tolerance grows with the values, since a difference of large numbers loses digits.
        if abs(shifts[-1] - shifts[0]) > _TOLERANCE * (sizes[-1] + sizes[0]):
            return False
    return len(shifts) >= _MIN_DEFINED and 2 * len(shifts) >= defined


def has_same_zeros(left: Formula, right: Formula) -> bool:
    """Return True if the equations `left` = 0 and `right` = 0 have the same solutions.

    One must be a multiple of the other, by a number, or by a variable that is never zero in a solution, as x is in
    xy = 12 and y = 12/x.
    """
    if variables(left) != variables(right):
        return False
    if _is_multiple(left, right):
        return True
    for name in variables(left):
        variable = Formula("symbol", name=name)
        left_product, right_product = Formula("product", (left, variable)), Formula("product", (right, variable))
        if _is_multiple(left_product, right) or _is_multiple(left, right_product):
            return not (_is_zero_at_zero(left, name) or _is_zero_at_zero(right, name))
    return False


def _is_multiple(left: Formula, right: Formula) -> bool:
    """Return True if the ratio of two formulas is a constant."""
    names = variables(left)
    ratios = list[Any]()
    for index in range(_POINTS):
        a, b = _value_at(left, names, index, real=True), _value_at(right, names, index, real=True)
        if a is None or b is None:
            continue
        if bool(a) != bool(b):
            return False  # a zero of only one of them
        if a:
            ratios.append(a / b)
            if abs(ratios[-1] - ratios[0]) > _TOLERANCE * abs(ratios[-1]):
                return False
    return len(ratios) >= _MIN_DEFINED


def _is_zero_at_zero(equation: Formula, name: str) -> bool:
    """Return True if `equation` is zero wherever the variable `name` is zero."""
    point = dict.fromkeys(variables(equation), _MP.mpf("2.718")) | {name: _MP.mpf(0)}
    try:
        result = evaluate(equation, point, real=True)
    except (ArithmeticError, ValueError):
        return False
    return abs(result) <= _TOLERANCE


def approximate(tree: Formula) -> Fraction | None:
    """Return the value of a formula without variables, rounded to a multiple of 1e-40, or None if it has no value."""
    result = _value_at(tree, frozenset(), 0, real=True)
    return None if result is None else Fraction(int(_MP.nint(result * 10**40)), 10**40)


@lru_cache(4096)
def _value_at(tree: Formula, variables: frozenset[str], index: int, real: bool) -> Any:
    """Return the value of `tree` at random point number `index`, or None if it is undefined there."""
    random = Random(index)
    draws = {name: random.uniform(-4, 4) if index % 2 else random.uniform(0, 3) for name in sorted(variables)}
    if index % 3 == 2:  # every third point is made of integers, for (-1)^n and n!
        draws = {name: random.randint(1, 12) for name in sorted(variables)}
    try:
        return evaluate(tree, {name: _MP.mpf(draw) for name, draw in draws.items()}, real)
    except (ArithmeticError, ValueError, ComplexResult):
        return None


def _operate(tree: Formula, point: Mapping[str, Any], real: bool) -> Any:
    """Return the value of the outermost operation of `tree`, applied to the values of its operands."""
    if tree.head == "symbol":
        if tree.name not in point and tree.name not in _CONSTANTS:
            raise UndefinedError(f"{tree.name} has no value")
        return point[tree.name] if tree.name in point else _CONSTANTS[tree.name]
    if tree.head == "measured":
        if tree.name not in _SCALES:
            raise UndefinedError("units have no value")
        return evaluate(tree.operands[0], point, real) * _SCALES[tree.name]
    if tree.head == "sequence" and (tree.name != "[]" or len(tree.operands) != 1):
        raise UndefinedError("a list has no value")
    operation = _FUNCTIONS.get(tree.name) if tree.head == "call" else _OPERATIONS.get(tree.head)
    if operation is None:
        raise UndefinedError(f"{tree.head} {tree.name} has no value")
    first, *rest = [evaluate(part, point, real) for part in tree.operands]
    if real and tree.head == "power" and first < 0:
        return _real_power(first, tree.operands[-1], *rest)
    try:
        return operation(first, *rest)
    except TypeError as error:  # a function of another number of arguments, or of complex numbers
        raise UndefinedError(str(error)) from error


def _quotient(over: Any, under: Any) -> Any:
    if under == 0:
        raise UndefinedError("division by zero")
    return _MP.mpf(over) / under if isinstance(over, int) else over / under


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if _MP.re(exponent) <= 0:
            raise UndefinedError("zero to a power that is not positive")
        return base
    if abs(exponent) * max(1, abs(_MP.mag(base))) > _MAX_BITS:
        raise UndefinedError("out of range")
    return base**exponent


def _real_power(base: Any, exponent: Formula, evaluated: Any) -> Any:
    """Return the power of a negative number, which is real for integers and fractions with odd denominators."""
    if evaluated == _MP.nint(evaluated):
        return _power(base, evaluated)
    fraction = exact_value(exponent)
    if fraction is None or fraction.denominator % 2 == 0:
        raise UndefinedError("not real")
    return _power(-base, evaluated) * (-1 if fraction.numerator % 2 else 1)


def _root(radicand: Any, index: Any) -> Any:
    if index != _MP.nint(index) or not 1 <= index <= 1000:  # larger indices are no answers
        raise UndefinedError("no root")
    if isinstance(radicand, _MP.mpf) and radicand < 0 and index % 2:
        return -_MP.root(-radicand, int(index))
    return _MP.root(radicand, int(index))


def _logarithm(number: Any, base: Any = _UNKNOWN_BASE) -> Any:
    if number == 0 or base in (0, 1):
        raise UndefinedError("no logarithm")
    return _MP.ln(number) / _MP.ln(base)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with bounded arguments, since gamma functions take long for large arguments."""

    def bounded(*arguments: Any) -> Any:
        if any(abs(argument) > 1000 for argument in arguments):  # 1000! has 2568 digits
            raise UndefinedError("out of range")
        return function(*arguments)

    return bounded


_SCALES = {"°": _MP.pi / 180, "%": _MP.mpf(1) / 100}
_CONSTANTS = {"pi": +_MP.pi, "e": +_MP.e, "i": _MP.mpc(0, 1)}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda *terms: _MP.fsum(terms),
    "negative": lambda part: -part,
    "product": lambda *factors: _MP.fprod(factors),
    "quotient": _quotient,
    "power": _power,
    "root": _root,
    "sequence": lambda part: part,
}
_NAMES = "sin cos tan cot sec csc sinh cosh tanh"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(_MP, name) for name in _NAMES.split()},
    **{f"arc{name}": getattr(_MP, f"a{name}") for name in _NAMES.split()},
    "ln": lambda argument: _logarithm(argument, _MP.e),
    "log": _logarithm,
    "abs": abs,
    "floor": _MP.floor,
    "ceil": _MP.ceil,
    "factorial": _bounded(_MP.factorial),
    "binom": _bounded(_MP.binomial),
    "max": max,
    "min": min,
}
