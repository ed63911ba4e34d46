"""Equality of single formulas with their units, where the right answer's form counts."""

from __future__ import annotations

from fractions import Fraction

from games.verifiers.closed_form import exact, is_worked_out, symbols
from games.verifiers.copying import is_copied
from games.verifiers.formulas import Tree
from games.verifiers.measurements import close, comparable_scales
from games.verifiers.symbolic import equal
from games.verifiers.units import PURE, Unit, read_unit

_LONGEST_DENOMINATOR = 10**12
"""Of a rational number that may equal a right answer such as cos(π/3), and not just approximate √2."""


def is_same_scalar(gold: Tree, answer: Tree, question: str) -> bool:
    """Return True if two formulas are equal, and the answer is worked out and not copied."""
    (right, unit), (formula, other) = _measured(gold), _measured(answer)
    if unit is None or other is None or not is_worked_out(formula, right, question):
        return False
    scales = comparable_scales(unit, other, answer.name if answer.head == "measured" else "", question)
    same = any(_is_equal(right, formula, *pair) for pair in scales)
    return same and not is_copied(formula, right, question, equal)


def _measured(tree: Tree) -> tuple[Tree, Unit | None]:
    """Return a formula and its unit; None for an unknown one."""
    return (tree.parts[0], read_unit(tree.name)) if tree.head == "measured" else (tree, PURE)


def _is_equal(gold: Tree, answer: Tree, scale: Fraction, answer_scale: Fraction) -> bool:
    value, number = exact(gold), exact(answer)
    if value is not None and number is not None:
        return close(value, number, (scale, answer_scale))
    if number is not None and not symbols(gold) and number.denominator > _LONGEST_DENOMINATOR:
        return False
    return equal(_times(gold, scale), _times(answer, answer_scale))


def _times(tree: Tree, scale: Fraction) -> Tree:
    return tree if scale == 1 else Tree("product", (Tree("number", value=scale), tree))
