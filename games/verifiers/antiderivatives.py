"""Equality of antiderivatives, whose constants of integration take up every number."""

from __future__ import annotations

import re

from games.verifiers.closed_form import is_scalar, symbols
from games.verifiers.copying import is_copied
from games.verifiers.formulas import Tree
from games.verifiers.renaming import added_constants

_INTEGRATION = re.compile(
    r"\\int\b|∫|\bintegra|\bantiderivative|\bprimitive|\bdifferential equation|\bdy\s*/\s*dx\b", re.I
)


def is_same_antiderivative(gold: Tree, answer: Tree, question: str) -> bool:
    """Return True if two formulas with the same constant of integration differ by a number.

    Without a question, only a capital C is taken for such a constant.
    """
    constants = added_constants(gold, question)
    if len(constants) != 1 or constants != added_constants(answer, question):
        return False
    if not (_INTEGRATION.search(question) if question.strip() else constants == {"C"}):
        return False
    right, stated = (_side(tree) for tree in (gold, answer))
    if _name(gold) != _name(answer) or not (is_scalar(right) and is_scalar(stated)) or symbols(right) <= constants:
        return False
    from games.verifiers.symbolic import differs_by_constant

    return differs_by_constant(right, stated) and not is_copied(stated, right, question, differs_by_constant)


def _side(tree: Tree) -> Tree:
    return tree.parts[-1] if tree.head == "relation" else tree


def _name(tree: Tree) -> tuple[Tree, ...]:
    """Return what stands before the formula in y = x + C, and the y."""
    return tree.parts[:-1] if tree.head == "relation" else ()
