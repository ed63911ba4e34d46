"""Reading and comparison of numbers in any notation, with or without a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from marl.core.types import Problem
from marl.games.verifiers.answer_verifier import HEDGES, unwrap
from marl.games.verifiers.closed_form import exact_value
from marl.games.verifiers.formulas import Formula, number_formula, read_formula
from marl.games.verifiers.latex_notation import normalize_notation
from marl.games.verifiers.number_words import read_words
from marl.games.verifiers.quantities import read_quantity
from marl.games.verifiers.tokens import UnreadableError
from marl.games.verifiers.units import PERCENT, PURE, Unit, read_unit, single_units, units_asked, units_named

_ARITHMETIC = frozenset(
    ["squared", "cubed", "factorial", "dozen", "dozens", "times", "plus", "minus", "over", "power", "root", "th"]
)
"""Words that change a number: no nouns for counted things, even if the question contains them."""
_ROUNDING = Fraction(1, 10**6)
"""Default tolerance, as a share of the right number."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with its unit, and the formula of its notation."""

    value: Fraction
    unit: Unit
    formula: Formula
    unit_name: str = ""


def is_close(
    right: Fraction,
    number: Fraction,
    scales: tuple[Fraction, Fraction],
    absolute: float = 0,
    relative: float | None = None,
) -> bool:
    """Return True if two numbers, each times its scale, agree within the greater of two tolerances.

    Args:
        scales: factors of `right` and of `number`.
        absolute: tolerance in the unit of `right`.
        relative: tolerance as a share of `right`. None: a millionth, and integers must be exact.
    """
    scale, number_scale = scales
    share = _ROUNDING if relative is None else Fraction(relative)
    if relative is None and right.denominator == 1 and scale == number_scale:
        share = Fraction(0)
    tolerance = max(Fraction(absolute), share * abs(right))
    return abs(right - number * number_scale / scale) <= tolerance


def comparable_scales(right: Unit, unit: Unit, name: str, question: str) -> list[tuple[Fraction, Fraction]]:
    """Return the pairs of factors (of the right number, of the answer) with which the numbers may be compared.

    A right answer with a unit accepts the same dimension, or no unit. A right answer without a unit accepts no unit, a
    unit of the dimension asked for, or a unit named in the question. Without a question, any unit is accepted except
    per cent: 5 % is not 5.

    Args:
        name: text of the answer's unit, for the units within, such as metre and second of "m/s".
    """
    same = [(right.factor, unit.factor)] if right.powers == unit.powers else []
    as_written = (Fraction(1), Fraction(1))
    if right != PURE:
        return [*same, as_written] if unit == PURE else same
    expected_units = units_asked(question)
    if unit != PURE and expected_units:
        return same + [(expected.factor, unit.factor) for expected in expected_units if expected.powers == unit.powers]
    named = set(single_units(name)) <= units_named(question)
    allowed = unit == PURE or (named if question.strip() else unit != PERCENT)
    return [*same, as_written] if allowed else same


def measure(text: str, problem: Problem) -> Measurement | None:
    """Return the single number stated by `text`, or None if `text` is anything else."""
    text = unwrap(text)
    return _literal(text, problem) or _compound(text, problem) or _closed_form(text)


def _literal(text: str, problem: Problem) -> Measurement | None:
    """Return a number in digits or words, with its unit, or None if `text` is anything else."""
    quantity = read_quantity(text)
    if quantity is None:
        return None
    unit = PURE if _is_counted(quantity.following_text, problem) else read_unit(quantity.following_text)
    if unit is None:
        return None
    formula = Formula("number", value=quantity.value)
    if quantity.terms:
        # A fraction keeps its form, since 6/3 is still to be worked out.
        formula = Formula("quotient", tuple(map(number_formula, quantity.terms)))
    return Measurement(quantity.value, unit, formula, quantity.following_text)


def _is_counted(name: str, problem: Problem) -> bool:
    """Return True if the text `name` after a number is empty or names counted things of the question, no unit."""
    word_list = re.findall(r"[^\W\d_]+", name.lower())
    words = set(word_list)
    if not re.fullmatch(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+){0,3}", name) or words & (HEDGES | _ARITHMETIC):
        return not name
    if len(words) < len(word_list):
        return False  # "apples apples"
    if any((len(word) == 1 and word.isascii()) or read_words(word) for word in words):
        return False  # a variable, or another number
    if not problem.question.strip() and name.lower() in ("point", "points"):
        return True
    text = f"{problem.question} {problem.answer}".lower()
    # Chinese has no spaces between words.
    is_in_question = words <= set(re.findall(r"[^\W\d_]+", text)) or (not name.isascii() and name in text)
    return is_in_question and not any(map(read_unit, (name, *words))) and not any(map(units_named, words))


_BETWEEN = re.compile(r"\s*(?:,|\band\b)\s*|(?<=[^\W\d_])\s*(?=[0-9])")


def _compound(text: str, problem: Problem) -> Measurement | None:
    """Return the sum of numbers in ever smaller units, such as 5 ft 3 in, or None if `text` is anything else."""
    pieces = _BETWEEN.split(normalize_notation(text))
    parts = [_literal(piece, problem) for piece in pieces] if 1 < len(pieces) < 5 else []
    first = parts[0] if parts else None
    if first is None or not first.unit.powers:
        return None
    value, smallest = first.value, first.unit
    for part in parts[1:]:
        if part is None or part.unit.powers != smallest.powers:
            return None
        size = part.value * part.unit.factor
        if not 0 <= size < smallest.factor:
            return None  # 5 ft 14 in
        value += size / first.unit.factor
        smallest = part.unit
    return replace(first, value=value, formula=Formula("number", value=value))


def _closed_form(text: str) -> Measurement | None:
    """Return the number of a formula such as 2^10 or 3^{-2}, or None if `text` is no rational number."""
    try:
        formula = read_formula(text)
    except UnreadableError:
        return None
    value = exact_value(formula)
    return None if value is None else Measurement(value, PURE, formula)
