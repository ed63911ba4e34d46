"""Reading and comparison of numbers in any notation, with or without a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from marl.core.types import Problem
from marl.games.verifiers.answer_verifier import HEDGES, unwrap
from marl.games.verifiers.closed_form import exact_value, is_decimal
from marl.games.verifiers.foreign_numbers import read_foreign_number
from marl.games.verifiers.formulas import MIXED, Formula, number_formula, read_formula
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.number_words import read_ordinal, read_words
from marl.games.verifiers.quantities import is_exactly_written, read_quantity
from marl.games.verifiers.tokens import UnreadableFormulaError
from marl.games.verifiers.units import PERCENT, PURE, Unit, read_unit, single_units, units_asked, units_named

_ARITHMETIC = frozenset(
    ["squared", "cubed", "factorial", "dozen", "dozens", "times", "plus", "minus", "over", "power", "root", "th"]
)
"""Words that change a number, and so never name counted things, even if the question contains these words."""
_FLOAT = Fraction(1, 10**12)
"""Rounding errors of numbers that a program prints, as a share of the number."""
_ROUNDING = Fraction(1, 10**6)
"""Default tolerance of a comparison, as a share of the right number."""
_RATE = re.compile(r"(?:\s+(?:per|an?|each|every)\s+|\s*/\s*)(?:\\text\s*\{\s*)?([a-z]{3,20})\s*\}?$", re.I)
_ORDINAL = re.compile(r"([0-9]{1,9})(?:st|nd|rd|th)", re.I)
_ASKS_FOR_PLACE = re.compile(
    r"\b(?:in (?:which|what) (?:place|position|century)|which (?:place|position|term|row|column|day|floor|century))\b",
    re.I,
)
_ASKS_FOR_PERCENTAGE = re.compile(r"(?<![0-9])(?<![0-9]\s)(?<![0-9]\\)(?:\bper\s?cent(?:age)?s?\b|%)", re.I)
_ASKS_FOR_ROUNDING = re.compile(
    r"\bround|\bdecimal places?\b|\b(?:to|with) (?:\w+ )?decimals?\b|\bsignificant (?:figures|digits)\b"
    r"|\bnearest (?:tenth|hundredth|thousandth|integer|whole)",
    re.I,
)
_WRITTEN_DECIMAL = re.compile(r"\$?[-\u2212]?[0-9][0-9,]*(?:\.([0-9]+))?\$?(?:\s*[^\W\d_]{1,20}|\s*%|\\%)?")
_REPEATED = re.compile(r"(.{1,60}\S)\s*\(([^()]{1,60})\)")
"""A number with a second notation in brackets: 17 (seventeen)."""
_BRACKETED_REMARK = re.compile(
    r"(?!(?:mod|base|in|thousand|million|hundred|billion|per|minus|times|plus|negative)\b)[^\W\d_]{3,20}(?:\s(?!(?:thousand|million|hundred)\b)[^\W\d_]{1,20}){1,8}",
    re.I,
)
"""Remark in brackets after a number, such as "six sevens"."""
_NONE = re.compile(r"(?:there (?:is|are) )?(?:none|no(?: [a-z]+){1,4})\.?", re.I)
_ASKS_FOR_COUNT = re.compile(r"\bhow many\b|\bnumber of\b", re.I)
_ASKS_IN_UNIT = r"(?i)\bin (?:dollars|euros|cents|pounds)\b"
_BETWEEN = re.compile(r"\s*(?:,|\band\b)\s*|(?<=[^\W\d_])\s*(?=[0-9])")
"""Text between the parts of 5 ft 3 in."""


class Scales(NamedTuple):
    """Factors by which the right number and the answer's number are multiplied before the comparison."""

    right: Fraction
    answer: Fraction


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with its unit, as stated by a text."""

    value: Fraction
    """Exact value of the number, in the unit."""
    unit: Unit
    formula: Formula
    """The number as it is written: a fraction stays a quotient."""
    unit_name: str = ""
    """Text of the unit, or "" without a unit."""


def is_close(
    gold_number: Fraction,
    stated_number: Fraction,
    scales: Scales,
    absolute_tolerance: float = 0,
    relative_tolerance: float | None = None,
    is_rounded: bool = True,
) -> bool:
    """Return True if two numbers, each times its scale, agree within the greater of two tolerances.

    Args:
        absolute_tolerance: tolerance in the unit of `gold_number`.
        relative_tolerance: tolerance as a share of `gold_number` (default: a millionth if `is_rounded`, else 0).
        is_rounded: True if the right number is a written decimal, or if a unit was converted into a decimal.
    """
    difference = abs(gold_number - stated_number * scales.answer / scales.right)
    if not difference:
        return True
    share = (_ROUNDING if is_rounded else Fraction(0)) if relative_tolerance is None else Fraction(relative_tolerance)
    tolerance = share * abs(gold_number)
    if relative_tolerance is None and (unit := _last_digit(gold_number)):
        tolerance = min(tolerance, max(unit, _FLOAT * abs(gold_number)))  # 1234567.8 for 1234567 is wrong
    tolerance = max(Fraction(absolute_tolerance), tolerance)
    return difference <= tolerance


def _last_digit(number: Fraction) -> Fraction | None:
    """Return the unit of the last digit of a decimal, or None if `number` is no decimal with up to 60 digits."""
    for digits in range(60):
        if (10**digits) % number.denominator == 0:
            return Fraction(1, 10**digits)
    return None


def may_be_rounded(gold_number: Formula, stated_number: Formula, scales: Scales) -> bool:
    """Return True if the right number is a decimal, or if the answer is one in another unit of measurement."""
    is_converted = scales.right != scales.answer and PERCENT.factor not in (scales.right, scales.answer)
    return is_decimal(gold_number) or (is_converted and is_decimal(stated_number))


def stated_rounds_to_gold(gold: Measurement, stated: Measurement, scales: Scales, problem: Problem) -> bool:
    """Return True if the question asks for rounding, and `stated` rounds to the right answer, a written decimal."""
    digits = _WRITTEN_DECIMAL.fullmatch(unwrap(problem.answer))
    if digits is None or not _ASKS_FOR_ROUNDING.search(problem.question) or not is_decimal(stated.formula):
        return False
    half = Fraction(1, 2 * 10 ** len(digits[1] or ""))
    value = stated.value * scales.answer / scales.right
    return gold.value - half <= value < gold.value + half


def unit_conversions(gold_unit: Unit, answer_unit: Unit, answer_unit_name: str, question: str) -> list[Scales]:
    """Return the scales at which an answer's number may be compared with the right one, or [] if its unit is wrong.

    A right answer with a unit accepts the same dimension, or no unit. A right answer without a unit accepts no unit, a
    unit of the dimension asked for, or a unit named in the question. If the question is empty, any unit is accepted
    except per cent: 5 % is not 5. If the question asks for per cent, a right answer without a unit is in per cent.
    """
    as_written = Scales(Fraction(1), Fraction(1))
    if gold_unit == PURE == answer_unit:
        return [as_written]
    same_dimension = gold_unit.powers == answer_unit.powers
    conversions = [Scales(gold_unit.factor, answer_unit.factor)] if same_dimension else []
    if gold_unit != PURE:
        return [*conversions, as_written] if answer_unit == PURE else conversions
    expected_units = units_asked(question)
    if PERCENT in expected_units and answer_unit == PERCENT:
        conversions = []  # if the question asks for per cent, the right answer 0.5 means 0.5 %, not 50 %
    if expected_units:
        for expected in expected_units:
            if expected.powers == answer_unit.powers:
                conversions.append(Scales(expected.factor, answer_unit.factor))
        return conversions
    is_named = set(single_units(answer_unit_name)) <= units_named(question)
    if answer_unit == PERCENT and not _ASKS_FOR_PERCENTAGE.search(question):
        is_named = False  # 12 % is a wrong answer to "What is 15 % of 80?"
    is_allowed = is_named if question.strip() else answer_unit != PERCENT
    return [*conversions, as_written] if is_allowed else conversions


def measure(text: str, problem: Problem) -> Measurement | None:
    """Return the number that `text` states, with its unit, or None if `text` is no number."""
    text = unwrap(text)
    if _NONE.fullmatch(text) and _ASKS_FOR_COUNT.search(problem.question):
        words = set(re.findall(r"[a-z]+", text.lower())) - {"there", "is", "are", "no", "none", "any"}
        text = "0" if words <= set(re.findall(r"[a-z]+", f"{problem.question.lower()} solution")) else text
    whole = _number_with_unit(text, problem)
    if whole and whole.unit.powers and whole.unit.powers in {unit.powers for unit in units_asked(problem.question)}:
        return whole
    number_text = _without_rate_or_ordinal(text, problem)
    if (number := read_foreign_number(number_text, problem.question)) is not None:
        number_text = str(number)
    measurement = whole if number_text == text else _number_with_unit(number_text, problem)
    if measurement:
        return measurement
    text = number_text
    if (repeated := _REPEATED.fullmatch(text)) and (first := _number_with_unit(repeated[1], problem)):
        second = read_words(repeated[2]) or read_quantity(repeated[2])
        if _BRACKETED_REMARK.fullmatch(repeated[2]) and HEDGES.isdisjoint(repeated[2].lower().split()):
            return first
        return first if second and second.value == first.value and not second.following_text else None
    # The text may be a sum in ever smaller units, such as 5 ft 3 in.
    pieces = _BETWEEN.split(normalize_notation(text))
    first, *others = [_number_with_unit(piece, problem) for piece in pieces] if 1 < len(pieces) < 5 else [None]
    if first and first.unit.powers and (total := _sum_of_smaller_units(first, others)):
        return total
    # The text may also be a formula without a unit, such as 2^10 or 3^{-2}.
    try:
        formula = read_formula(text)
    except UnreadableFormulaError:
        return None
    value = exact_value(formula)
    return None if value is None else Measurement(value, PURE, formula)


def _without_rate_or_ordinal(text: str, problem: Problem) -> str:
    """Return "$18" for "$18 per day", and "3" for "3rd", if the question asks for the rate or the place.

    The right answer itself must have no rate.
    """
    if _ASKS_FOR_PLACE.search(problem.question) or _ORDINAL.fullmatch(unwrap(problem.answer)):
        place = re.sub(r"^the | (?:place|position|term)$", "", text.lower())
        if ordinal := _ORDINAL.fullmatch(place):
            return ordinal[1]
        if (number := read_ordinal(place)) is not None:
            return str(number)
    rate = _RATE.search(text)
    if rate is None or _RATE.search(problem.answer) or "/" in problem.answer:
        return text
    name = re.escape(rate[1])
    is_asked = re.search(rf"\b(?:per|an?|each|every)\s+{name}\b|\b{name}ly\b", _last_sentence(problem.question), re.I)
    return text[: rate.start()] if is_asked else text


def _last_sentence(question: str) -> str:
    """Return the sentence that asks: earlier sentences may name other rates, such as 60 km per hour."""
    return re.split(r"[.!?]\s+(?=[A-Z])", question.strip())[-1]


def _number_with_unit(text: str, problem: Problem) -> Measurement | None:
    """Return the number in digits or words at the beginning of `text`, or None unless a unit or nothing follows."""
    quantity = read_quantity(text)
    if quantity is None:
        return None
    name = quantity.following_text
    unit = PURE if _names_counted_things(name, problem) else read_unit(name)
    if (
        unit == PURE
        and name
        and not read_unit(name)
        and re.search(_ASKS_IN_UNIT, problem.question)
        and units_asked(problem.question)
    ):
        return None  # 18 eggs are no answer to a question for dollars
    if unit is None:
        return None
    written = text.removesuffix(quantity.following_text).rpartition("approx")[2]
    formula = Formula("number", value=quantity.value, name=MIXED if is_exactly_written(written) else "")
    if quantity.terms:
        # A fraction is not reduced, because 6/3 may count as an unfinished answer.
        formula = Formula("quotient", tuple(map(number_formula, quantity.terms)))
    return Measurement(quantity.value, unit, formula, quantity.following_text)


def _names_counted_things(name: str, problem: Problem) -> bool:
    """Return True if `name`, the text after a number, is empty or names things in the question, such as "apples"."""
    word_list = re.findall(r"[^\W\d_]+", name.lower())
    words = set(word_list)
    if not re.fullmatch(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+){0,3}", name) or words & (HEDGES | _ARITHMETIC):
        return not name
    if len(words) < len(word_list):
        return False  # a repeated word, as in "5 apples apples", names no counted things
    for word in words:
        if (len(word) == 1 and word.isascii()) or read_words(word):
            # A single letter is a variable, and a number word such as "three" a number; neither names counted things.
            return False
    if not problem.question.strip() and name.lower() in ("point", "points"):
        return True
    if (
        name.isascii()
        and len(name) <= 4
        and name not in (named := re.findall(r"[^\W\d_]+", f"{problem.question} {problem.answer}"))
        and (not name.islower() or any(word.lower() == name and read_unit(word) for word in named))
    ):
        return False  # MB, Mb and mb are different units, so an abbreviation must occur in the problem as it is
    text = f"{problem.question} {problem.answer}".lower()
    # Chinese has no spaces between words, so a Chinese name is searched as a substring.
    is_in_question = words <= set(re.findall(r"[^\W\d_]+", text)) or (not name.isascii() and name in text)
    return is_in_question and not any(map(read_unit, (name, *words))) and not any(map(units_named, words))


def _sum_of_smaller_units(first: Measurement, others: list[Measurement | None]) -> Measurement | None:
    """Return the sum of 5 ft (`first`) and 3 in, or None if one of `others` is no number of a smaller unit."""
    value, smallest = first.value, first.unit
    for smaller in others:
        if smaller is None or smaller.unit.powers != smallest.powers:
            return None
        size = smaller.value * smaller.unit.factor
        if not 0 <= size < smallest.factor:
            return None  # in 5 ft 14 in, the smaller part exceeds 1 ft, so this is no length in mixed units
        value += size / first.unit.factor
        smallest = smaller.unit
    return replace(first, value=value, formula=Formula("number", value=value))
