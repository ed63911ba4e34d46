r"""Vectors that are written with unit vectors: 2\mathbf{i} - \mathbf{j} + 4\mathbf{k}."""

from __future__ import annotations

from games.verifiers.formulas import Tree, number

_UNIT_VECTORS = ("i", "j", "k")


def components(tree: Tree, dimensions: int) -> tuple[Tree, ...]:
    """Return the components of a sum of multiples of unit vectors; () for everything else, also for numbers a + bi."""
    lengths = dict[str, Tree]()
    for term in tree.parts if tree.head == "sum" else (tree,):
        is_negative = term.head == "negative"
        inner = term.parts[0] if is_negative else term
        factors = inner.parts if inner.head == "product" else (inner,)
        names = [factor.name for factor in factors if factor.head == "symbol" and factor.name in _UNIT_VECTORS]
        if len(names) != 1 or names[0] in lengths:
            return ()
        rest = tuple(factor for factor in factors if factor.name not in _UNIT_VECTORS)
        length = Tree("product", rest) if len(rest) > 1 else rest[0] if rest else number(1)
        lengths[names[0]] = _negated(length) if is_negative else length
    used = _UNIT_VECTORS[:dimensions]
    if not lengths.keys() - {"i"} or not lengths.keys() <= {*used}:
        return ()
    return tuple(lengths.get(name, number(0)) for name in used)


def _negated(tree: Tree) -> Tree:
    return number(-tree.value) if tree.head == "number" else Tree("negative", (tree,))
