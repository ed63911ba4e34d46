"""Irrational numbers in closed form, such as 10π, for a right answer that is given as a long decimal."""

from __future__ import annotations

import re

from games.verifiers.closed_form import exact, is_worked_out, symbols
from games.verifiers.copying import is_copied
from games.verifiers.formulas import Tree, number, read_formula
from games.verifiers.measurements import Measurement
from games.verifiers.real_sets import label
from games.verifiers.tokens import UnreadableError
from games.verifiers.units import PURE, read_unit

_HEADS = frozenset(["number", "symbol", "negative", "product", "quotient", "power", "root"])
_SURD = Tree("root", (number(2), number(2)))
_WANTS_DIGITS = re.compile(
    r"\b(?:decimals?|round\w*|approximat\w+|nearest|digits?|places|(?:square|cube) root of)\b", re.I
)


def measure_irrational(text: str, right: Measurement, question: str) -> Measurement | None:
    r"""Return the value of a worked-out closed form such as 5\sqrt{3}, where a decimal is the right answer; else None.

    It is one root, π, e or power of these, times a rational number. Sums, and formulas of the question, are not worked
    out, and where the question asks for digits, only these are an answer.
    """
    if right.value.denominator == 1 or right.formula.head != "number" or _WANTS_DIGITS.search(question):
        return None
    try:
        tree = read_formula(text, frozenset())  # so that cm is a unit, and no product
    except UnreadableError:
        return None
    if tree.head == "relation" and tree.name == "=" and len(tree.parts) == 2 and label(tree.parts[0]):
        tree = tree.parts[1]
    formula, name = (tree.parts[0], tree.name) if tree.head == "measured" else (tree, "")
    unit = read_unit(name) if name else PURE
    if unit is None or not _is_single_surd(formula) or not is_worked_out(formula, _SURD, question):
        return None
    from games.verifiers.symbolic import approximate, equal

    if is_copied(formula, right.formula, question, lambda _, each: equal(formula, each)):
        return None
    value = approximate(formula)
    return None if value is None else Measurement(value, unit, formula, name)


def _is_single_surd(tree: Tree) -> bool:
    r"""Return True if one part of a product or quotient is irrational: \frac{5\pi}{2\pi} is 5/2."""
    parts = list(tree.walk())
    irrational = [
        part for part in parts if part.head == "symbol" or (part.head in ("root", "power") and _is_surd(part))
    ]
    return len(irrational) == 1 and not symbols(tree) and all(part.head in _HEADS for part in parts)


def _is_surd(tree: Tree) -> bool:
    """Return True for a root or power of rational numbers that is not rational."""
    return exact(tree) is None and all(exact(part) is not None for part in tree.parts)
