"""Formulas with a plus-minus sign, which stand for two."""

from __future__ import annotations

from games.verifiers.formulas import Tree


def alternatives(tree: Tree) -> tuple[Tree, ...] | None:
    """Return the two formulas that one with ± stands for; None if it has none."""
    if not any(part.head in ("plus_minus", "minus_plus") for part in tree.walk()):
        return None
    return _chosen(tree, "plus_minus"), _chosen(tree, "minus_plus")


def _chosen(tree: Tree, upper: str) -> Tree:
    parts = tuple(_chosen(part, upper) for part in tree.parts)
    if tree.head not in ("plus_minus", "minus_plus"):
        return Tree(tree.head, parts, tree.name, tree.value)
    left, right = parts
    signed = right if tree.head == upper else Tree("negative", (right,))
    return signed if left == Tree("number") else Tree("sum", (left, signed))
