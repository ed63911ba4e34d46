"""Form of a formula: whether a number is worked out, or arithmetic remains for the grader."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul

from marl.games.verifiers.formulas import TRIGONOMETRIC, Formula, number_formula

_SCALARS = frozenset(
    (
        *("number", "symbol", "sum", "negative", "product", "quotient", "power", "root", "call", "measured"),
        *("plus_minus", "minus_plus"),
    )
)
_CONSTANTS = frozenset(("pi", "e", "i", "infty", "reals", "emptyset"))
_LOGARITHMS = ("log", "ln")
_SYMBOL_KINDS = {"i": "imaginary", "pi": "irrational", "e": "irrational"}
_MAX_BITS = 10_000
"""Maximum size of an exact number's numerator and denominator, in bits."""
IRRATIONAL_ROOT = Formula("root", (number_formula(2), number_formula(2)))
"""√2 as the right answer of `is_worked_out`: it allows roots, π and e in the answer."""


def is_scalar(tree: Formula) -> bool:
    """Return True if `tree` is a single formula: no list, set, matrix or relation."""
    return all(part.head in _SCALARS for part in tree.walk())


def variables(tree: Formula) -> frozenset[str]:
    """Return the names of the variables of a formula."""
    return frozenset(part.name for part in tree.walk() if part.head == "symbol") - _CONSTANTS


def exact_value(tree: Formula) -> Fraction | None:
    """Return the exact value of `tree`, or None if it is not rational or takes more than `_MAX_BITS`."""
    if tree.head == "number":
        return tree.value
    operation = _RATIONAL.get(tree.head)
    if operation is None or (tree.head == "measured" and tree.name != "%"):
        return None
    values = list[Fraction]()
    for part in tree.operands:
        if (value := exact_value(part)) is None:
            return None
        values.append(value)
    return operation(*values)


def _bounded(value: Fraction) -> Fraction | None:
    # Bounded at every step, so that nested powers such as 9^{9^9} neither fill the memory nor run for ever.
    return value if max(map(int.bit_length, value.as_integer_ratio())) <= _MAX_BITS else None


def _folded(operation: Callable[[Fraction, Fraction], Fraction]) -> Callable[..., Fraction | None]:
    """Return a left fold of `operation` over its arguments; the fold is None once a result is too large."""

    def fold(*values: Fraction) -> Fraction | None:
        result: Fraction | None = values[0]
        for value in values[1:]:
            result = None if result is None else _bounded(operation(result, value))
        return result

    return fold


def _divided(numerator: Fraction, denominator: Fraction) -> Fraction | None:
    return _bounded(numerator / denominator) if denominator else None


def _raised(base: Fraction, exponent: Fraction) -> Fraction | None:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (base == 0 and exponent <= 0) or abs(exponent) * bits > _MAX_BITS:
        return None
    if exponent.denominator == 1:
        return base**exponent.numerator
    root = _root(base, Fraction(exponent.denominator))
    return None if root is None else root**exponent.numerator


def _root(radicand: Fraction, index: Fraction) -> Fraction | None:
    """Return the real root of `radicand`, or None if it is not rational."""
    if index.denominator != 1 or not 1 <= index <= 1000 or (radicand < 0 and index % 2 == 0):
        return None
    numerator = _integer_root(abs(radicand.numerator), int(index))
    denominator = _integer_root(radicand.denominator, int(index))
    if numerator is None or denominator is None:
        return None
    return Fraction(numerator, denominator) * (-1 if radicand < 0 else 1)


_RATIONAL: dict[str, Callable[..., Fraction | None]] = {
    "negative": lambda value: -value,
    "sum": _folded(add),
    "product": _folded(mul),
    "quotient": _divided,
    "power": _raised,
    "root": _root,
    "measured": lambda value: value / 100,
}
"""Head of a formula -> its operation on rational numbers, or None as result; `measured` is per cent."""


def _integer_root(number: int, index: int) -> int | None:
    """Return the exact root of `number` by bisection, or None if it is no integer."""
    low, high = 0, 1 << (number.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= number else (low, middle - 1)
    return low if low**index == number else None


def is_worked_out(answer: Formula, gold: Formula, question: str = "") -> bool:
    """Return True unless `answer` leaves arithmetic to the grader (2+3 for 5): True accepts its form.

    Allowed for a number: a literal, a fraction or a power, each with a sign. An irrational number may be a sum of
    multiples of roots, pi and e, too. The operations of `gold` are always allowed. Powers and reducible fractions must
    not consist of the numbers of the question.
    """
    if variables(gold):
        return True
    allowed = _remaining_operations(gold)
    if exact_value(gold) is None:
        allowed |= {"sum", "root", "irrational"}
    if any(part == Formula("symbol", name="i") for part in gold.walk()):
        allowed |= {"trigonometry", "imaginary"}
    return _remaining_operations(answer) <= allowed and not (_repeats_question(question, answer) and answer != gold)


def _remaining_operations(tree: Formula) -> set[str]:
    """Return the kinds of arithmetic still to be done in `tree`."""
    operations = set[str]()
    for part in tree.walk():
        if part.head in _REMAINING_WORK:
            operations.add(_REMAINING_WORK[part.head](*part.operands))
        elif part.head == "symbol":
            operations.add(_SYMBOL_KINDS.get(part.name, part.name))
        elif part.head == "call" and part.name in _LOGARITHMS:
            operations.add("logarithm")
        elif part.head == "call" and part.name in TRIGONOMETRIC:
            operations.add("trigonometry")
        else:
            operations.add(part.name if part.head == "call" else part.head)
    return operations - {""}


def _nested_sign(*parts: Formula) -> str:
    return "sign" if parts and parts[0].head == "negative" else ""


def _sum(*terms: Formula) -> str:
    return "sum of numbers" if sum(exact_value(term) is not None for term in terms) > 1 else "sum"


def _product(*parts: Formula) -> str:
    """Return "product" if two factors can be multiplied out: two numbers, two roots or two equal factors."""
    if sum(exact_value(part) is not None for part in parts) > 1:
        return "product"
    roots = [part for part in parts if part.head == "root"]
    return "product" if len(roots) > 1 or len(set(parts)) < len(parts) else ""


def _quotient(over: Formula, under: Formula) -> str:
    """Return "division" if a division can be carried out: 6/3, 0.5/2 and 1/(1/2), unlike 3/6 and 2/√3."""
    coefficients = list[Formula | None]()
    for part in (over, under):
        if part.head in ("quotient", "measured") or (part.head == "number" and part.value.denominator != 1):
            return "division"
        factors = part.operands if part.head == "product" else (part,)
        coefficients.append(next((factor for factor in factors if exact_value(factor) is not None), None))
    if over == under or exact_value(under) == 0:
        return "division"
    numerator, denominator = coefficients
    if numerator is None or denominator is None:
        return ""
    if not (_is_integer(numerator) and _is_integer(denominator)):
        return "division"
    dividend, divisor = exact_value(numerator) or 0, exact_value(denominator) or 1
    return "division" if dividend and dividend % divisor == 0 else ""


def _is_integer(tree: Formula) -> bool:
    tree = tree.operands[0] if tree.head == "negative" else tree
    return tree.head == "number" and tree.value.denominator == 1


def _power(base: Formula, exponent: Formula) -> str:
    if exact_value(base) in (0, 1) or exact_value(exponent) in (0, 1):
        return "trivial power"
    if exponent.head == "power" or base.head in ("power", "root", "sum", "product", "negative"):
        literal = base.head == "negative" and _is_literal(base)
        return "" if literal and _is_literal(exponent) else "repeated power"
    value = exact_value(exponent)
    if base.head == "quotient" and value is not None and value < 0:
        return "division"
    if value is not None and value.denominator != 1:
        return "perfect root" if exact_value(Formula("power", (base, exponent))) is not None else "root"
    return "" if value is None or exact_value(base) is None or _is_literal(exponent) else "repeated power"


def _is_literal(tree: Formula) -> bool:
    tree = tree.operands[0] if tree.head == "negative" else tree
    return tree.head == "number" or (tree.head == "quotient" and all(part.head == "number" for part in tree.operands))


def _root_of(radicand: Formula, index: Formula) -> str:
    return "root" if exact_value(Formula("root", (radicand, index))) is None else "perfect root"


_REMAINING_WORK: dict[str, Callable[..., str]] = {
    **dict.fromkeys(("number", "negative", "measured"), _nested_sign),
    "sum": _sum,
    "product": _product,
    "quotient": _quotient,
    "power": _power,
    "root": _root_of,
}
"""Head of a formula -> function of its operands that names the arithmetic still to be done; "" for none."""


def _repeats_question(question: str, answer: Formula) -> bool:
    """Return True if `answer` is a power or reducible fraction of two numbers of the question: a reason to reject."""
    answer = answer.operands[0] if answer.head in ("negative", "measured") else answer
    if answer.head not in ("power", "quotient") or any(part.head != "number" for part in answer.operands):
        return False
    left, right = (part.value for part in answer.operands)
    is_reduced = answer.head == "quotient" and right != 0 and (left / right).denominator == right
    question_numbers = {Fraction(digits.replace(",", "")) for digits in _NUMBERS.findall(question)}
    return not is_reduced and {left, right} <= question_numbers


_NUMBERS = re.compile(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
