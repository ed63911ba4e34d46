"""Measurement of numbers, however they are written, with or without a unit, and their comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from games.verifiers.closed_form import exact
from games.verifiers.formulas import Tree, read_formula
from games.verifiers.notation import plain
from games.verifiers.number_words import read_words
from games.verifiers.quantities import read_quantity
from games.verifiers.reading import HEDGES, unwrap
from games.verifiers.tokens import UnreadableError
from games.verifiers.units import PERCENT, PURE, Unit, read_unit, single_units, units_asked, units_named
from marl.types import Problem

_ARITHMETIC = frozenset(
    ["squared", "cubed", "factorial", "dozen", "dozens", "times", "plus", "minus", "over", "power", "root", "th"]
)
"""Words that change a number, although a question may hold them, too."""
_ROUNDING = Fraction(1, 10**6)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with its unit, and the formula in which it is written."""

    value: Fraction
    unit: Unit
    formula: Tree
    unit_name: str = ""


def close(
    right: Fraction,
    number: Fraction,
    scales: tuple[Fraction, Fraction],
    absolute: float = 0,
    relative: float | None = None,
) -> bool:
    """Return True if two numbers, each times its scale, agree up to a tolerance: absolute, or a share of the right one.

    Without a share it is a millionth, and integers must be exact.
    """
    scale, number_scale = scales
    share = _ROUNDING if relative is None else Fraction(relative)
    if relative is None and right.denominator == 1 and scale == number_scale:
        share = Fraction(0)
    tolerance = max(Fraction(absolute), share * abs(right))
    return abs(right - number * number_scale / scale) <= tolerance


def comparable_scales(right: Unit, unit: Unit, name: str, question: str) -> list[tuple[Fraction, Fraction]]:
    """Return by what the right number and another one may be multiplied before they are compared.

    A right answer with a unit is met by the same dimension, or without a unit. One without is met without, by a unit
    of the dimension that the question asks for, or by a unit whose parts it names. Without a question, any unit goes,
    except per cent: 5 % is not 5.
    """
    same = [(right.factor, unit.factor)] if right.powers == unit.powers else []
    as_written = (Fraction(1), Fraction(1))
    if right != PURE:
        return [*same, as_written] if unit == PURE else same
    wanted_units = units_asked(question)
    if unit != PURE and wanted_units:
        return same + [(wanted.factor, unit.factor) for wanted in wanted_units if wanted.powers == unit.powers]
    named = set(single_units(name)) <= units_named(question)
    allowed = unit == PURE or (named if question.strip() else unit != PERCENT)
    return [*same, as_written] if allowed else same


def measure(text: str, problem: Problem) -> Measurement | None:
    """Return the number that `text` states; None if it states more, less or something else."""
    text = unwrap(text)
    return _literal(text, problem) or _compound(text, problem) or _closed_form(text)


def _literal(text: str, problem: Problem) -> Measurement | None:
    """Return a number in digits or words, with its unit if it has one."""
    quantity = read_quantity(text)
    if quantity is None:
        return None
    unit = PURE if _is_counted(quantity.rest, problem) else read_unit(quantity.rest)
    if unit is None:
        return None
    formula = Tree("number", value=quantity.value)
    if quantity.terms:
        formula = Tree("quotient", tuple(Tree("number", value=Fraction(term)) for term in quantity.terms))
    return Measurement(quantity.value, unit, formula, quantity.rest)


def _is_counted(name: str, problem: Problem) -> bool:
    """Return True if no unit follows a number, or a word of the question, such as the things that are counted."""
    listed = re.findall(r"[^\W\d_]+", name.lower())
    words = set(listed)
    if not re.fullmatch(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+){0,3}", name) or words & (HEDGES | _ARITHMETIC):
        return not name
    if len(words) < len(listed):
        return False
    if any((len(word) == 1 and word.isascii()) or read_words(word) for word in words):
        return False  # a variable, or another number
    if not problem.question.strip() and name.lower() in ("point", "points"):
        return True
    text = f"{problem.question} {problem.answer}".lower()
    known = words <= set(re.findall(r"[^\W\d_]+", text)) or (not name.isascii() and name in text)
    return known and not any(map(read_unit, (name, *words))) and not any(map(units_named, words))


_BETWEEN = re.compile(r"\s*(?:,|\band\b)\s*|(?<=[^\W\d_])\s*(?=[0-9])")


def _compound(text: str, problem: Problem) -> Measurement | None:
    """Return the sum of numbers whose units become smaller: 5 ft 3 in, 1 hour and 30 minutes."""
    pieces = _BETWEEN.split(plain(text))
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
            return None
        value += size / first.unit.factor
        smallest = part.unit
    return replace(first, value=value, formula=Tree("number", value=value))


def _closed_form(text: str) -> Measurement | None:
    """Return a number that is written as a formula, such as 2^10 or 3^{-2}."""
    try:
        formula = read_formula(text)
    except UnreadableError:
        return None
    value = exact(formula)
    return None if value is None else Measurement(value, PURE, formula)
