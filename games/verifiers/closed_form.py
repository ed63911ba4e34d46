"""Form of a formula: whether a number is worked out, or arithmetic remains for the grader."""

from __future__ import annotations

import re
from fractions import Fraction
from operator import add, mul, truediv

from marl.games.verifiers.copied_formulas import holds_copied_formula
from marl.games.verifiers.formulas import MIXED, TRIGONOMETRIC, Formula, number_formula
from marl.games.verifiers.unknown_functions import is_unknown_call

SCALARS = frozenset(
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
_LONG_DENOMINATOR = 1000
"""Denominator from which on a right answer is too long to be worked out, so that an expression is accepted."""
_LONG_INTEGER = 10**15
"""The same for integers, such as 2^100 - 1."""
_OPERATIONS = {"sum": add, "product": mul, "quotient": truediv}
_RATIONAL = frozenset([*_OPERATIONS, "negative", "power", "root", "measured"])
"""Heads of formulas that have a rational value if their operands have one; `measured` is per cent."""
_ASKS_FOR_FRACTION = re.compile(
    r"\b(?:as|into) (?:an? )?(?:[a-z-]+ ){0,3}(?:fraction|ratio of (?:two )?integers)\b"
    r"|\b(?:lowest|simplest) (?:terms|form)\b|\b(?:reduced|simplified|irreducible|common|improper) fraction\b",
    re.I,
)
_ASKS_FOR_LOWEST_TERMS = re.compile(
    r"\b(?:lowest|simplest) (?:terms|form)\b|\b(?:reduced|irreducible) fraction\b", re.I
)
_ASKS_FOR_DECIMAL = re.compile(
    r"\b(?:as|into) (?:an? )?(?:[a-z-]+ ){0,2}decimal\b|\bin decimal (?:form|notation)\b", re.I
)
_ASKS_FOR_FACTORS = re.compile(
    r"^\W*(?:please\s+)?(?:(?:fully|completely)\s+)?factor(?:i[sz]e)?\b|\bfactor(?:i[sz]e)? (?:completely|fully)\b"
    r"|\bfactored form\b",
    re.I,
)
_ASKS_FOR_SUM = re.compile(r"^\W*(?:please\s+)?(?:expand|multiply out)\b|\bexpanded form\b", re.I)
_NUMBERS = re.compile(r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
IRRATIONAL_ROOT = Formula("root", (number_formula(2), number_formula(2)))
"""√2, passed to `is_fully_evaluated` as the right answer, so that roots, π and e are allowed in the answer."""


def is_scalar(tree: Formula) -> bool:
    """Return True if `tree` is a single formula: no list, set, matrix or relation."""
    if tree.head not in SCALARS:
        return False
    # The arguments of an unknown function need not be scalars: in P(A \cap B) they are events.
    return is_unknown_call(tree) or all(map(is_scalar, tree.operands))


def is_decimal(tree: Formula) -> bool:
    """Return True for a written decimal such as -0.75, which may be rounded, unlike the fraction 3/4."""
    number = tree.operands[0] if tree.head in ("negative", "measured") else tree
    return number.head == "number" and number.name != MIXED and number.value.denominator > 1


def has_form_of_polynomial(answer: Formula, gold: Formula, question: str) -> bool:
    """Return False if `answer` is a sum where `question` asks for factors, or a product where it asks for a sum."""
    products = ("product", "power", "negative")
    if gold.head in products and answer.head == "sum":
        return not _ASKS_FOR_FACTORS.search(question)
    if gold.head == "sum" and answer.head in products:
        return not _ASKS_FOR_SUM.search(question)
    return True


def asks_for_fraction_or_decimal(question: str) -> bool:
    """Return True if a question asks for a fraction or a decimal, so that a percentage is no answer."""
    return bool(_ASKS_FOR_FRACTION.search(question) or _ASKS_FOR_DECIMAL.search(question))


def has_requested_form(answer: Formula, gold: Formula, question: str) -> bool:
    """Return False for a decimal where the question asks for a fraction, a fraction for a decimal, or an unreduced one.

    The right answer itself must have the form that is asked for.
    """
    if gold.value.denominator == 1 and gold.head != "quotient":
        return True
    unsigned, right = (tree.operands[0] if tree.head == "negative" else tree for tree in (answer, gold))
    if right.head == "quotient" and _ASKS_FOR_FRACTION.search(question):
        is_unreduced = unsigned.head == "quotient" and not _is_reduced(unsigned)
        return not is_decimal(answer) and not (is_unreduced and _ASKS_FOR_LOWEST_TERMS.search(question))
    return not (is_decimal(gold) and unsigned.head == "quotient" and _ASKS_FOR_DECIMAL.search(question))


def _is_reduced(quotient: Formula) -> bool:
    numerator, denominator = map(exact_value, quotient.operands)
    if not numerator or not denominator:
        return False
    return (numerator / denominator).denominator == denominator


def variables(tree: Formula) -> frozenset[str]:
    """Return the names of the variables of a formula, without constants such as pi."""
    return frozenset(tree.symbols() - _CONSTANTS)


def exact_value(tree: Formula) -> Fraction | None:
    """Return the exact value of `tree`, or None if it is not rational or takes more than `_MAX_BITS`."""
    if tree.head == "number":
        return tree.value
    if tree.head not in _RATIONAL or (tree.head == "measured" and tree.name != "%"):
        return None
    values = list[Fraction]()
    for operand in tree.operands:
        if (value := exact_value(operand)) is None:
            return None
        values.append(value)
    return exact_operation(tree, values)


def exact_operation(tree: Formula, values: list[Fraction]) -> Fraction | None:
    """Return the value of the outermost operation of `tree` for the `values` of its operands, or None if not rational.

    Intermediate values are bounded by `_MAX_BITS`, so that a nested formula neither fills the memory nor runs for ever.
    """
    match tree.head:
        case "negative":
            return -values[0]
        case "measured":
            return values[0] / 100 if tree.name == "%" else None
        case "power":
            return _rational_power(*values)
        case "root":
            return _rational_root(*values)
        case "sum" | "product" | "quotient":
            pass
        case _:
            return None
    result = values[0]
    for value in values[1:]:
        if tree.head == "quotient" and value == 0:
            return None
        result = _OPERATIONS[tree.head](result, value)
        if max(map(int.bit_length, result.as_integer_ratio())) > _MAX_BITS:
            return None
    return result


def _rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Return `base` to the power `exponent`, or None if the power is not rational or too large (as 9^{9^9} is)."""
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (base == 0 and exponent <= 0) or abs(exponent) * bits > _MAX_BITS:
        return None
    if exponent.denominator == 1:
        return base**exponent.numerator
    root = _rational_root(base, Fraction(exponent.denominator))
    return None if root is None else root**exponent.numerator


def _rational_root(radicand: Fraction, index: Fraction) -> Fraction | None:
    """Return the real root of `radicand` with `index` (2: square root), or None if the root is not rational."""
    if index.denominator != 1 or not 1 <= index <= 1000 or (radicand < 0 and index % 2 == 0):
        return None
    numerator = _integer_root(abs(radicand.numerator), int(index))
    denominator = _integer_root(radicand.denominator, int(index))
    if numerator is None or denominator is None:
        return None
    return Fraction(numerator, denominator) * (-1 if radicand < 0 else 1)


def _integer_root(number: int, index: int) -> int | None:
    """Return the exact root of `number`, found by bisection, or None if the root is no integer."""
    low, high = 0, 1 << (number.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= number else (low, middle - 1)
    return low if low**index == number else None


def _has_same_exact_value(left: Formula, right: Formula) -> bool:
    return exact_value(left) == exact_value(right)


def is_fully_evaluated(answer: Formula, gold: Formula, question: str = "") -> bool:
    """Return True unless `answer` leaves arithmetic to the grader (2+3 for 5): True accepts the form of the answer.

    Allowed for a number: a literal, a fraction or a power, each with a sign. An irrational number may also be a sum of
    multiples of roots, pi and e. The operations of `gold` are always allowed. A power or a reducible fraction of two
    numbers of the question is not worked out. A right answer with a long denominator allows all arithmetic, such as
    1 - (5/6)^10, that is not copied from the question.
    """
    if variables(gold):
        return True
    allowed = _remaining_operations(gold)
    if exact_value(gold) is None:
        allowed |= {"sum", "root", "irrational"}
    if "i" in gold.symbols():
        allowed |= {"trigonometry", "imaginary"}
    if "binom" in allowed:
        allowed |= {"product", "division", "factorial"}
    if "sum of numbers" in allowed:
        allowed |= {"product", "division", "repeated power"}  # as unevaluated as the right answer
    if not _remaining_operations(answer) <= allowed:
        value = exact_value(gold)
        is_long = value is not None and (value.denominator >= _LONG_DENOMINATOR or abs(value) >= _LONG_INTEGER)
        return is_long and not holds_copied_formula(answer, gold, question, _has_same_exact_value)
    unsigned = answer.operands[0] if answer.head in ("negative", "measured") else answer
    if answer == gold or unsigned.head not in ("power", "quotient"):
        return True
    left, right = unsigned.operands
    if left.head != "number" or right.head != "number":
        return True
    if unsigned.head == "quotient" and right.value != 0 and (left.value / right.value).denominator == right.value:
        return True  # a fraction in lowest terms is a finished answer
    question_numbers = {Fraction(digits.replace(",", "")) for digits in _NUMBERS.findall(question)}
    return not {left.value, right.value} <= question_numbers


def _remaining_operations(tree: Formula) -> set[str]:
    """Return the kinds of arithmetic that are still to be done in `tree`, such as "division" or "perfect root"."""
    operations = set[str]()
    for part in tree.walk():
        operands = part.operands
        match part.head:
            case "number" | "negative" | "measured":
                operations.add("sign" if operands and operands[0].head == "negative" else "")
            case "sum" | "product":
                number_count = len(operands) - [*map(exact_value, operands)].count(None)
                if part.head == "sum":
                    operations.add("sum of numbers" if number_count > 1 else "sum")
                    continue
                # A product of numbers, of roots or of equal factors is unfinished: it can be multiplied out.
                root_count = sum(factor.head == "root" for factor in operands)
                if max(number_count, root_count) > 1 or len(set(operands)) < len(operands):
                    operations.add("product")
            case "quotient":
                operations.add(_remaining_work_of_quotient(*operands))
            case "power":
                operations.add(_remaining_work_of_power(*operands))
            case "root":
                operations.add("root" if exact_value(part) is None else "perfect root")
            case "symbol":
                operations.add(_SYMBOL_KINDS.get(part.name, part.name))
            case "call" if part.name in _LOGARITHMS:
                operations.add("logarithm")
            case "call" if part.name in TRIGONOMETRIC:
                operations.add("trigonometry")
            case "call":
                operations.add(part.name)
            case head:
                operations.add(head)
    return operations - {""}


def _remaining_work_of_quotient(numerator: Formula, denominator: Formula) -> str:
    """Return "division" if a division can be carried out (6/3, 0.5/2, 1/(1/2)), or "" if it cannot (3/6, 2/√3)."""
    coefficients = list[Formula | None]()
    for part in (numerator, denominator):
        is_rational_quotient = part.head == "quotient" and exact_value(part) is not None
        if is_rational_quotient or part.head == "measured" or (part.head == "number" and part.value.denominator != 1):
            return "division"
        factors = part.operands if part.head == "product" else (part,)
        coefficients.append(next((factor for factor in factors if exact_value(factor) is not None), None))
    if numerator == denominator or exact_value(denominator) == 0:
        return "division"
    dividend, divisor = coefficients
    if dividend is None or divisor is None:
        return ""
    if not (_is_integer_literal(dividend) and _is_integer_literal(divisor)):
        return "division"
    value = exact_value(dividend)
    return "division" if value and value % (exact_value(divisor) or 1) == 0 else ""


def _is_integer_literal(tree: Formula) -> bool:
    tree = tree.operands[0] if tree.head == "negative" else tree
    return tree.head == "number" and tree.value.denominator == 1


def _remaining_work_of_power(base: Formula, exponent: Formula) -> str:
    """Return the arithmetic still to be done in a power: "root", "division", "trivial power", ..., or "" for none."""
    if exact_value(base) in (0, 1) or exact_value(exponent) in (0, 1):
        return "trivial power"
    if exponent.head == "power" or base.head in ("power", "root", "sum", "product", "negative"):
        is_negative_number = base.head == "negative" and _is_number_or_fraction(base)
        return "" if is_negative_number and _is_number_or_fraction(exponent) else "repeated power"
    value = exact_value(exponent)
    if base.head == "quotient" and value is not None and value < 0:
        return "division"
    if value is not None and value.denominator != 1:
        return "perfect root" if exact_value(Formula("power", (base, exponent))) is not None else "root"
    is_plain = value is None or exact_value(base) is None or _is_number_or_fraction(exponent)
    return "" if is_plain else "repeated power"


def _is_number_or_fraction(tree: Formula) -> bool:
    """Return True for a number or a fraction of two numbers, each with or without a minus sign."""
    tree = tree.operands[0] if tree.head == "negative" else tree
    if tree.head == "quotient":
        return {operand.head for operand in tree.operands} == {"number"}
    return tree.head == "number"
