"""Formulas with a plus-minus sign, each an abbreviation of two formulas."""

from __future__ import annotations

from marl.games.verifiers.formulas import Formula


def sign_alternatives(tree: Formula) -> tuple[Formula, ...] | None:
    """Return the two formulas abbreviated by ± (first with +, then with -), or None if `tree` has no ±."""
    if not any(part.head in ("plus_minus", "minus_plus") for part in tree.walk()):
        return None
    return _with_sign(tree, "plus_minus"), _with_sign(tree, "minus_plus")


def _with_sign(tree: Formula, positive_head: str) -> Formula:
    """Return `tree` with + for the sign `positive_head` and - for the other one."""
    parts = tuple(_with_sign(part, positive_head) for part in tree.operands)
    if tree.head not in ("plus_minus", "minus_plus"):
        return Formula(tree.head, parts, tree.name, tree.value)
    left, right = parts
    signed = right if tree.head == positive_head else Formula("negative", (right,))
    # A sign without a left term, as in ±3, has the number 0 on its left.
    return signed if left == Formula("number") else Formula("sum", (left, signed))
