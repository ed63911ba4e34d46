"""Equality of single formulas with units, up to a form that leaves work to the grader."""

from __future__ import annotations

from fractions import Fraction

from marl.games.verifiers.closed_form import exact_value, is_worked_out, variables
from marl.games.verifiers.copied_formulas import holds_copied_formula
from marl.games.verifiers.formulas import Formula
from marl.games.verifiers.measurements import comparable_scales, is_close
from marl.games.verifiers.symbolic import is_equal
from marl.games.verifiers.units import PURE, Unit, read_unit

_LONGEST_DENOMINATOR = 10**12
"""Maximum denominator of a rational number that may equal cos(π/3); with a larger one it only approximates √2."""


def is_same_scalar(gold: Formula, answer: Formula, question: str) -> bool:
    """Return True if two formulas are equal, and `answer` is worked out and not copied from the question."""
    (right, unit), (formula, other) = _measured(gold), _measured(answer)
    if unit is None or other is None or not is_worked_out(formula, right, question):
        return False
    scales = comparable_scales(unit, other, answer.name if answer.head == "measured" else "", question)
    if not any(_is_equal(right, formula, *pair) for pair in scales):
        return False
    return not holds_copied_formula(formula, right, question, is_equal)


def _measured(tree: Formula) -> tuple[Formula, Unit | None]:
    """Return a formula and its unit, which is None if it is unknown."""
    return (tree.operands[0], read_unit(tree.name)) if tree.head == "measured" else (tree, PURE)


def _is_equal(gold: Formula, answer: Formula, scale: Fraction, answer_scale: Fraction) -> bool:
    value, number = exact_value(gold), exact_value(answer)
    if value is not None and number is not None:
        return is_close(value, number, (scale, answer_scale))
    if number is not None and not variables(gold) and number.denominator > _LONGEST_DENOMINATOR:
        return False
    return is_equal(_times(gold, scale), _times(answer, answer_scale))


def _times(tree: Formula, scale: Fraction) -> Formula:
    return tree if scale == 1 else Formula("product", (Formula("number", value=scale), tree))
