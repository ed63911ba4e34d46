"""Equality of single formulas with units; a formula that leaves arithmetic to the grader is not accepted."""

from __future__ import annotations

import re
from fractions import Fraction

from marl.games.verifiers.closed_form import (
    IRRATIONAL_ROOT,
    exact_value,
    has_form_of_polynomial,
    is_fully_evaluated,
    variables,
)
from marl.games.verifiers.copied_formulas import holds_copied_formula
from marl.games.verifiers.formulas import Formula, number_formula
from marl.games.verifiers.measurements import is_close, may_be_rounded, unit_conversions
from marl.games.verifiers.symbolic import Comparison, compare, is_equal
from marl.games.verifiers.units import DEGREE, PURE, Unit, read_unit

_RADIAN = read_unit("radians")
_NAMES_UNIT_OF_ANGLE = re.compile(r"\bdegrees?\b|\bradians?\b|°", re.I)
_LONGEST_DENOMINATOR = 10**12
"""Maximum denominator of a rational number that may equal a formula such as cos(π/3); one with a larger denominator
is an approximation."""


def compare_scalars(gold: Formula, answer: Formula, question: str) -> Comparison:
    """Return EQUAL if two formulas are equal, and `answer` is worked out and not copied from the question."""
    (right, unit), (formula, answer_unit) = _formula_and_unit(gold), _formula_and_unit(answer)
    if (in_radians := _in_radians(gold, answer, question)) is not None:
        return in_radians
    if unit is None or answer_unit is None or not is_fully_evaluated(formula, right, question):
        return Comparison.DIFFERENT
    unit_name = answer.name if answer.head == "measured" else ""
    value, number = exact_value(right), exact_value(formula)
    result = Comparison.DIFFERENT
    for scales in unit_conversions(unit, answer_unit, unit_name, question):
        if value is not None and number is not None:
            is_same = is_close(value, number, scales, is_rounded=may_be_rounded(right, formula, scales))
            outcome = Comparison.EQUAL if is_same else Comparison.DIFFERENT
        elif number is not None and not variables(right) and number.denominator > _LONGEST_DENOMINATOR:
            outcome = Comparison.DIFFERENT
        else:
            outcome = compare(_multiply(right, scales.right), _multiply(formula, scales.answer))
        if outcome and not has_form_of_polynomial(formula, right, question):
            return Comparison.DIFFERENT
        if outcome:
            is_copied = holds_copied_formula(formula, right, question, is_equal)
            return Comparison.DIFFERENT if is_copied else outcome
        result = outcome if outcome is Comparison.UNKNOWN else result
    return result


def _in_radians(gold: Formula, answer: Formula, question: str) -> Comparison | None:
    """Return EQUAL if two angles are equal, one in degrees and one a multiple of π; None for other formulas."""
    trees = {_is_in_degrees(tree): tree for tree in (gold, answer)}
    if len(trees) < 2 or _NAMES_UNIT_OF_ANGLE.search(question):
        return None
    degrees, radians = trees[True], trees[False]
    number, unit = _formula_and_unit(radians)
    if "pi" not in number.symbols() or unit not in (PURE, _RADIAN) or not is_fully_evaluated(number, IRRATIONAL_ROOT):
        return None
    angle = Formula("product", (degrees.operands[0], Formula("symbol", name="pi"), number_formula(Fraction(1, 180))))
    return compare(angle, number)


def _is_in_degrees(tree: Formula) -> bool:
    return tree.head == "measured" and read_unit(tree.name) == DEGREE


def _formula_and_unit(tree: Formula) -> tuple[Formula, Unit | None]:
    """Return the formula before a unit, and the unit: `PURE` if no unit is written, None if the unit is unknown."""
    return (tree.operands[0], read_unit(tree.name)) if tree.head == "measured" else (tree, PURE)


def _multiply(tree: Formula, factor: Fraction) -> Formula:
    return tree if factor == 1 else Formula("product", (number_formula(factor), tree))
