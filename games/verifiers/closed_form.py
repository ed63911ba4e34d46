"""Judgement of formulas by their form: what is worked out, and what is left for others to work out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from operator import add, mul

from games.verifiers.formulas import TRIGONOMETRIC, Tree

_SCALARS = frozenset(
    (
        *("number", "symbol", "sum", "negative", "product", "quotient", "power", "root", "call", "measured"),
        *("plus_minus", "minus_plus"),
    )
)
_CONSTANTS = frozenset(("pi", "e", "i", "infty", "reals", "emptyset"))
_LOGARITHMS = ("log", "ln")
_MAX_BITS = 10_000
"""Size of an exact number."""


def is_scalar(tree: Tree) -> bool:
    """Return True if a tree is one formula, not a list, a set, a matrix or a relation."""
    return all(part.head in _SCALARS for part in tree.walk())


def symbols(tree: Tree) -> frozenset[str]:
    """Return the names of the variables of a formula."""
    return frozenset(part.name for part in tree.walk() if part.head == "symbol") - _CONSTANTS


def exact(tree: Tree) -> Fraction | None:
    """Return the value of a formula if it takes only rational arithmetic on numbers that fit into memory."""
    if tree.head == "number":
        return tree.value
    operation = _RATIONAL.get(tree.head)
    if operation is None or (tree.head == "measured" and tree.name != "%"):
        return None
    values = list[Fraction]()
    for part in tree.parts:
        if (value := exact(part)) is None:
            return None
        values.append(value)
    return operation(*values)


def _bounded(value: Fraction) -> Fraction | None:
    return value if max(map(int.bit_length, value.as_integer_ratio())) <= _MAX_BITS else None


def _folded(operation: Callable[[Fraction, Fraction], Fraction]) -> Callable[..., Fraction | None]:
    """Return the operation on any number of values, which gives up as soon as a result is too large."""

    def fold(*values: Fraction) -> Fraction | None:
        result: Fraction | None = values[0]
        for value in values[1:]:
            result = None if result is None else _bounded(operation(result, value))
        return result

    return fold


def _divided(over: Fraction, under: Fraction) -> Fraction | None:
    return _bounded(over / under) if under else None


def _raised(base: Fraction, exponent: Fraction) -> Fraction | None:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (base == 0 and exponent <= 0) or abs(exponent) * bits > _MAX_BITS:
        return None
    if exponent.denominator == 1:
        return base**exponent.numerator
    root = _root(base, Fraction(exponent.denominator))
    return None if root is None else root**exponent.numerator


def _root(radicand: Fraction, index: Fraction) -> Fraction | None:
    """Return the root if it is rational; None if it is not."""
    if index.denominator != 1 or not 1 <= index <= 1000 or (radicand < 0 and index % 2 == 0):
        return None
    parts = [_integer_root(abs(part), int(index)) for part in radicand.as_integer_ratio()]
    return None if None in parts else Fraction(*parts) * (-1 if radicand < 0 else 1)  # type: ignore[arg-type]


_RATIONAL: dict[str, Callable[..., Fraction | None]] = {
    "negative": lambda value: -value,
    "sum": _folded(add),
    "product": _folded(mul),
    "quotient": _divided,
    "power": _raised,
    "root": _root,
    "measured": lambda value: value / 100,
}
"""Operations on rational numbers that may have a rational result; a formula is measured in percent."""


def _integer_root(number: int, index: int) -> int | None:
    low, high = 0, 1 << (number.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= number else (low, middle - 1)
    return low if low**index == number else None


def is_worked_out(answer: Tree, gold: Tree, question: str = "") -> bool:
    """Return True unless a formula leaves to the grader what the right answer has worked out.

    For a number that is: anything but a literal, a fraction or a power, each with a sign. An irrational number may be a
    sum of multiples of roots, pi and e, too. The right answer's own operations are always allowed. Powers and fractions
    that can be reduced must not be made of the numbers of the question.
    """
    if symbols(gold):
        return True
    allowed = set(_operations(gold))
    if exact(gold) is None:
        allowed |= {"sum", "root", "irrational"}
    if any(part == Tree("symbol", name="i") for part in gold.walk()):
        allowed |= {"trigonometry", "imaginary"}
    return set(_operations(answer)) <= allowed and not (_is_from(question, answer) and answer != gold)


def _operations(tree: Tree) -> Iterator[str]:
    """Yield the kinds of arithmetic that a formula leaves to do."""
    for part in tree.walk():
        if name := _operation(part):
            yield name


def _operation(tree: Tree) -> str:
    """Return the kind of arithmetic that the outermost operation of a formula leaves to do; "" for none."""
    judge = _JUDGES.get(tree.head)
    if judge:
        return judge(*tree.parts)
    if tree.head == "symbol":
        return {"i": "imaginary", "pi": "irrational", "e": "irrational"}.get(tree.name, tree.name)
    if tree.head == "call":
        return "logarithm" if tree.name in _LOGARITHMS else "trigonometry" if tree.name in TRIGONOMETRIC else tree.name
    return tree.head


def _nested_sign(*parts: Tree) -> str:
    return "sign" if parts and parts[0].head == "negative" else ""


def _sum(*terms: Tree) -> str:
    return "sum of numbers" if sum(exact(term) is not None for term in terms) > 1 else "sum"


def _product(*parts: Tree) -> str:
    """Return "product" for a product of two numbers, two roots or two equal factors, as that can be worked out."""
    if sum(exact(part) is not None for part in parts) > 1:
        return "product"
    roots = [part for part in parts if part.head == "root"]
    return "product" if len(roots) > 1 or len(set(parts)) < len(parts) else ""


def _quotient(over: Tree, under: Tree) -> str:
    """Return "division" unless the rational factors above and below are integers, and the upper is no multiple."""
    nested = any(part.head in ("quotient", "measured") or _is_decimal(part) for part in (over, under))
    if nested or over == under or exact(under) == 0:
        return "division"
    above, below = (next(filter(_is_rational, _factors(part)), None) for part in (over, under))
    if above is None or below is None:
        return ""
    if not (_is_integer(above) and _is_integer(below)):
        return "division"
    upper, lower = exact(above) or 0, exact(below) or 1
    return "division" if upper and upper % lower == 0 else ""


def _factors(tree: Tree) -> tuple[Tree, ...]:
    return tree.parts if tree.head == "product" else (tree,)


def _is_rational(tree: Tree) -> bool:
    return exact(tree) is not None


def _is_integer(tree: Tree) -> bool:
    tree = tree.parts[0] if tree.head == "negative" else tree
    return tree.head == "number" and tree.value.denominator == 1


def _power(base: Tree, exponent: Tree) -> str:
    if exact(base) in (0, 1) or exact(exponent) in (0, 1):
        return "trivial power"
    if exponent.head == "power" or base.head in ("power", "root", "sum", "product", "negative"):
        literal = base.head == "negative" and _is_literal(base)
        return "" if literal and _is_literal(exponent) else "repeated power"
    value = exact(exponent)
    if base.head == "quotient" and value is not None and value < 0:
        return "division"
    if value is not None and value.denominator != 1:
        return "perfect root" if exact(Tree("power", (base, exponent))) is not None else "root"
    return "" if value is None or exact(base) is None or _is_literal(exponent) else "repeated power"


def _is_literal(tree: Tree) -> bool:
    tree = tree.parts[0] if tree.head == "negative" else tree
    return tree.head == "number" or (tree.head == "quotient" and all(part.head == "number" for part in tree.parts))


def _is_decimal(tree: Tree) -> bool:
    return tree.head == "number" and tree.value.denominator != 1


def _root_of(radicand: Tree, index: Tree) -> str:
    return "root" if exact(Tree("root", (radicand, index))) is None else "perfect root"


_JUDGES: dict[str, Callable[..., str]] = {
    **dict.fromkeys(("number", "negative", "measured"), _nested_sign),
    "sum": _sum,
    "product": _product,
    "quotient": _quotient,
    "power": _power,
    "root": _root_of,
}


def _is_from(question: str, answer: Tree) -> bool:
    """Return True if a power, or a fraction that can be reduced, is made of numbers that the question names."""
    answer = answer.parts[0] if answer.head in ("negative", "measured") else answer
    if answer.head not in ("power", "quotient") or any(part.head != "number" for part in answer.parts):
        return False
    left, right = (part.value for part in answer.parts)
    is_reduced = answer.head == "quotient" and right != 0 and (left / right).denominator == right
    named = {Fraction(digits.replace(",", "")) for digits in _NUMBERS.findall(question)}
    return not is_reduced and {left, right} <= named


_NUMBERS = re.compile(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
