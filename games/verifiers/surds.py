"""Irrational numbers in closed form, such as 10π, as answers where the right answer is a long decimal."""

from __future__ import annotations

import re

from marl.games.verifiers.closed_form import IRRATIONAL_ROOT, exact_value, is_fully_evaluated, variables
from marl.games.verifiers.copied_formulas import holds_copied_formula
from marl.games.verifiers.formulas import Formula, read_formula
from marl.games.verifiers.measurements import Measurement
from marl.games.verifiers.real_sets import assigned_name
from marl.games.verifiers.tokens import UnreadableFormulaError
from marl.games.verifiers.units import PURE, read_unit

_HEADS = frozenset(["number", "symbol", "negative", "product", "quotient", "power", "root"])
_ASKS_FOR_DIGITS = re.compile(
    r"\b(?:decimals?|round\w*|approximat\w+|nearest|digits?|places|(?:square|cube) root of)\b", re.I
)


def measure_irrational(text: str, right: Measurement, question: str) -> Measurement | None:
    r"""Return the value of a closed form such as 5\sqrt{3}, for a right answer that is its rounded value (8.66).

    A closed form is one root, π, e or power of these, times a rational number. None for any other text, and if the
    closed form is no answer: if it is copied from the question, or if the question asks for digits.
    """
    if right.value.denominator == 1 or right.formula.head != "number" or _ASKS_FOR_DIGITS.search(question):
        return None
    try:
        tree = read_formula(text, frozenset())  # without variables, `cm` is read as a unit and not as a product
    except UnreadableFormulaError:
        return None
    if tree.head == "relation" and tree.name == "=" and len(tree.operands) == 2 and assigned_name(tree.operands[0]):
        tree = tree.operands[1]
    formula, name = (tree.operands[0], tree.name) if tree.head == "measured" else (tree, "")
    unit = read_unit(name) if name else PURE
    if unit is None or not _is_single_surd(formula) or not is_fully_evaluated(formula, IRRATIONAL_ROOT, question):
        return None
    # Imported here, so that `marl check` does not load python-flint.
    from marl.games.verifiers.symbolic import approximate, is_equal

    if holds_copied_formula(formula, right.formula, question, lambda _, copied: is_equal(formula, copied)):
        return None
    value = approximate(formula)
    return None if value is None else Measurement(value, unit, formula, name)


def _is_single_surd(tree: Formula) -> bool:
    r"""Return True if exactly one part of `tree` is irrational. Two parts may cancel: \frac{5\pi}{2\pi} is 5/2."""
    irrational_parts = 0
    for part in tree.walk():
        if part.head not in _HEADS:
            return False
        if part.head == "symbol":
            irrational_parts += 1
        elif part.head in ("root", "power") and exact_value(part) is None:
            # A root of an irrational operand adds nothing, because the operand has been counted itself.
            irrational_parts += None not in [*map(exact_value, part.operands)]
    return irrational_parts == 1 and not variables(tree)
