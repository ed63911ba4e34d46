"""Equality of formulas: two that agree to 45 digits at random points are the same (Schwartz 1980, Zippel 1979).

No formula is transformed, so that nothing here can run for ever: one evaluation takes bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from random import Random
from typing import Any

from mpmath import MPContext
from mpmath.libmp import ComplexResult

from games.verifiers.closed_form import exact, symbols
from games.verifiers.formulas import Tree

_MP = MPContext()
_MP.prec = 260
"""Bits of precision: 78 digits."""
_TOLERANCE = _MP.mpf(10) ** -45
_MAX_BITS = 20_000
"""Numbers from 2^-20000 to 2^20000 are computed."""
_POINTS = 12
_MIN_DEFINED = 3
"""Points at which both formulas must have a value."""
_UNKNOWN_BASE = _MP.mpf("7.382905614382971526")
r"""Base of \log where none is named: neither e nor 10, so that it equals neither \ln nor \log_{10}."""


class UndefinedError(ArithmeticError):
    """A formula has no value at a point."""


def value(tree: Tree, point: Mapping[str, Any], real: bool) -> Any:
    """Return the value of a formula in mpmath's numbers; raise UndefinedError if it has none that is finite.

    With `real`, roots and logarithms of negative numbers have no value, except odd roots.
    """
    rational = exact(tree)
    result = _quotient(*rational.as_integer_ratio()) if rational is not None else _operate(tree, point, real)
    if not _MP.isfinite(result) or (result and abs(_MP.mag(result)) > _MAX_BITS):
        raise UndefinedError("out of range")
    if real and isinstance(result, _MP.mpc):
        raise UndefinedError("not real")
    return result


def equal(gold: Tree, answer: Tree) -> bool:
    """Return True if two formulas are equal wherever both have values."""
    if symbols(answer) - symbols(gold):
        return False
    real = not any(part == Tree("symbol", name="i") for tree in (gold, answer) for part in tree.walk())
    both = defined = 0
    for index in range(_POINTS if symbols(gold) else 1):
        right, stated = (_value_at(tree, symbols(gold), index, real) for tree in (gold, answer))
        defined += right is not None
        if right is None or stated is None:
            continue
        if abs(right - stated) > _TOLERANCE * max(abs(right), abs(stated), _TOLERANCE):
            return False
        both += 1
    return both >= (min(_MIN_DEFINED, defined) or 1) and 2 * both >= defined


def differs_by_constant(gold: Tree, answer: Tree) -> bool:
    """Return True if the difference of two formulas is the same number wherever both have values."""
    variables = symbols(gold)
    if symbols(answer) != variables:
        return False
    pairs = [[_value_at(tree, variables, index, real=True) for tree in (gold, answer)] for index in range(_POINTS)]
    defined = [(right, stated) for right, stated in pairs if right is not None and stated is not None]
    shifts = [right - stated for right, stated in defined]
    sizes = [max(abs(right), abs(stated), 1) for right, stated in defined]
    same = all(
        abs(shift - shifts[0]) <= _TOLERANCE * (size + sizes[0]) for shift, size in zip(shifts, sizes, strict=True)
    )
    return same and len(shifts) >= _MIN_DEFINED and 2 * len(shifts) >= sum(right is not None for right, _ in pairs)


def has_same_zeros(left: Tree, right: Tree) -> bool:
    """Return True if two equations, each as what equals zero, have the same solutions.

    One must be a multiple of the other, by a number, or by a variable that is zero in no solution: xy = 12, y = 12/x.
    """
    if symbols(left) != symbols(right):
        return False
    if _is_multiple(left, right):
        return True
    for variable in (Tree("symbol", name=name) for name in symbols(left)):
        products = [Tree("product", (equation, variable)) for equation in (left, right)]
        if _is_multiple(products[0], right) or _is_multiple(left, products[1]):
            return not any(_is_zero_without(equation, variable.name) for equation in (left, right))
    return False


def _is_multiple(left: Tree, right: Tree) -> bool:
    variables = symbols(left)
    pairs = [[_value_at(tree, variables, index, real=True) for tree in (left, right)] for index in range(_POINTS)]
    ratios = [a / b for a, b in pairs if a and b]
    zeros = any(a is not None and b is not None and bool(a) != bool(b) for a, b in pairs)
    same = all(abs(ratio - ratios[0]) <= _TOLERANCE * abs(ratio) for ratio in ratios)
    return len(ratios) >= _MIN_DEFINED and same and not zeros


def _is_zero_without(equation: Tree, name: str) -> bool:
    """Return True if a formula is zero where a variable is, whatever the others are."""
    try:
        result = value(equation, dict.fromkeys(symbols(equation), _MP.mpf("2.718")) | {name: _MP.mpf(0)}, real=True)
    except (ArithmeticError, ValueError):
        return False
    return abs(result) <= _TOLERANCE


def approximate(tree: Tree) -> Fraction | None:
    """Return the value of a formula without variables, rounded to a multiple of 1e-40; None if it has none."""
    result = _value_at(tree, frozenset(), 0, real=True)
    return None if result is None else Fraction(int(_MP.nint(result * 10**40)), 10**40)


@lru_cache(4096)
def _value_at(tree: Tree, variables: frozenset[str], index: int, real: bool) -> Any:
    """Return the value at one of the points; None if there is none."""
    random = Random(index)
    draws = {name: random.uniform(-4, 4) if index % 2 else random.uniform(0, 3) for name in sorted(variables)}
    if index % 3 == 2:  # every third point is made of integers, for (-1)^n and n!
        draws = {name: random.randint(1, 12) for name in sorted(variables)}
    try:
        return value(tree, {name: _MP.mpf(draw) for name, draw in draws.items()}, real)
    except (ArithmeticError, ValueError, ComplexResult):
        return None


def _operate(tree: Tree, point: Mapping[str, Any], real: bool) -> Any:
    if tree.head == "symbol":
        return _symbol(tree.name, point)
    if tree.head == "measured":
        return _measured(tree, point, real)
    if tree.head == "sequence" and (tree.name != "[]" or len(tree.parts) != 1):
        raise UndefinedError("a list has no value")
    operation = _FUNCTIONS.get(tree.name) if tree.head == "call" else _OPERATIONS.get(tree.head)
    if operation is None:
        raise UndefinedError(f"{tree.head} {tree.name} has no value")
    first, *rest = [value(part, point, real) for part in tree.parts]
    if real and tree.head == "power" and first < 0:
        return _real_power(first, tree.parts[-1], *rest)
    try:
        return operation(first, *rest)
    except TypeError as error:  # a function of another number of arguments, or of complex numbers
        raise UndefinedError(str(error)) from error


def _symbol(name: str, point: Mapping[str, Any]) -> Any:
    if name in point:
        return point[name]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    raise UndefinedError(f"{name} has no value")


def _measured(tree: Tree, point: Mapping[str, Any], real: bool) -> Any:
    scale = {"°": _MP.pi / 180, "%": _MP.mpf(1) / 100}.get(tree.name)
    if scale is None:
        raise UndefinedError("units have no value")
    return value(tree.parts[0], point, real) * scale


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


def _real_power(base: Any, exponent: Tree, evaluated: Any) -> Any:
    """Return a power of a negative number, for integers and fractions with odd denominators."""
    if evaluated == _MP.nint(evaluated):
        return _power(base, evaluated)
    fraction = exact(exponent)
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


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of bounded arguments; gamma functions take long for large ones."""

    def bounded(*arguments: Any) -> Any:
        if any(abs(argument) > 1000 for argument in arguments):  # 1000! has 2568 digits
            raise UndefinedError("out of range")
        return function(*arguments)

    return bounded


def _sum(*terms: Any) -> Any:
    return _MP.fsum(terms)


def _reciprocal(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda argument: _quotient(_MP.mpf(1), function(argument))


_CONSTANTS = {"pi": +_MP.pi, "e": +_MP.e, "i": _MP.mpc(0, 1)}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
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
    "factorial": _whole(_MP.factorial),
    "binom": _whole(_MP.binomial),
    "max": max,
    "min": min,
}
