"""Formulas with a plus-minus sign, each an abbreviation of two formulas."""

from __future__ import annotations

from marl.games.verifiers.formulas import Formula


def sign_alternatives(tree: Formula) -> tuple[Formula, ...] | None:
    """Return the two formulas abbreviated by ± (first with +, then with -), or None if `tree` has no ±."""
    if tree.node_heads().isdisjoint(("plus_minus", "minus_plus")):
        return None
    return _with_plus_for(tree, "plus_minus"), _with_plus_for(tree, "minus_plus")


def _with_plus_for(tree: Formula, positive_head: str) -> Formula:
    """Return `tree` with + for the sign (± or ∓) whose head is `positive_head`, and - for the other sign."""
    parts = tuple(_with_plus_for(part, positive_head) for part in tree.operands)
    if tree.head not in ("plus_minus", "minus_plus"):
        return Formula(tree.head, parts, tree.name, tree.value)
    left, right = parts
    signed = right if tree.head == positive_head else Formula("negative", (right,))
    # The parser reads ±3 as 0 ± 3, so a left operand of 0 is dropped.
    return signed if left == Formula("number") else Formula("sum", (left, signed))
