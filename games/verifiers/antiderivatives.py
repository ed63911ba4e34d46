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
    """Return True if two formulas with the same constant of integration differ by a number: the answer is accepted.

    Without a question, only a capital C counts as a constant of integration.
    """
    constants = added_constants(gold, question)
    if len(constants) != 1 or constants != added_constants(answer, question):
        return False
    if not (_INTEGRATION.search(question) if question.strip() else constants == {"C"}):
        return False
    # In y = x + C, the formula is the last operand, and y must be the same in both.
    left_sides = [tree.operands[:-1] if tree.head == "relation" else () for tree in (gold, answer)]
    right, stated = (tree.operands[-1] if tree.head == "relation" else tree for tree in (gold, answer))
    if left_sides[0] != left_sides[1] or not (is_scalar(right) and is_scalar(stated)) or variables(right) <= constants:
        return False
    # Here, so that `marl check` does not load mpmath.
    from marl.games.verifiers.symbolic import differs_by_constant

    return differs_by_constant(right, stated) and not holds_copied_formula(stated, right, question, differs_by_constant)
