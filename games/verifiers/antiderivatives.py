"""Equality of antiderivatives up to their constants of integration."""

from __future__ import annotations

import re

from marl.games.verifiers.arbitrary_constants import added_constants
from marl.games.verifiers.closed_form import is_scalar, variables
from marl.games.verifiers.copied_formulas import holds_copied_formula
from marl.games.verifiers.formulas import Formula

_INTEGRATION = re.compile(
    r"\\int\b|∫|\bintegra|\bantiderivative|\bprimitive|\bdifferential equation|\bdy\s*/\s*dx\b", re.I
)


def is_same_antiderivative(gold: Formula, answer: Formula, question: str) -> bool:
    """Return True if `answer` is an antiderivative like `gold`: both contain one constant and differ by a number only.

    If the question is empty, only a capital C is a constant of integration.
    """
    constants = added_constants(gold, question)
    if len(constants) != 1 or constants != added_constants(answer, question):
        return False
    if not (_INTEGRATION.search(question) if question.strip() else constants == {"C"}):
        return False
    # In an equation such as y = x + C, the antiderivative is the last operand, and the names (y) must be equal.
    *gold_sides, right = gold.operands if gold.head == "relation" else (gold,)
    *answer_sides, stated = answer.operands if answer.head == "relation" else (answer,)
    if gold_sides != answer_sides or not (is_scalar(right) and is_scalar(stated)) or variables(right) <= constants:
        return False
    # Imported here, so that `marl check` does not load python-flint.
    from marl.games.verifiers.symbolic import differs_by_constant

    def has_constant_shift(left: Formula, other: Formula) -> bool:
        return bool(differs_by_constant(left, other))

    return has_constant_shift(right, stated) and not holds_copied_formula(stated, right, question, has_constant_shift)
