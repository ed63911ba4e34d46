r"""Vectors as sums of unit vectors: 2\mathbf{i} - \mathbf{j} + 4\mathbf{k}."""

from __future__ import annotations

from marl.games.verifiers.formulas import Formula, number_formula

_UNIT_VECTORS = ("i", "j", "k")


def vector_components(tree: Formula, dimensions: int) -> tuple[Formula, ...]:
    """Return the components of a sum of multiples of unit vectors, or () for any other formula, also for a + bi."""
    lengths = dict[str, Formula]()
    for term in tree.operands if tree.head == "sum" else (tree,):
        is_negative = term.head == "negative"
        inner = term.operands[0] if is_negative else term
        factors = inner.operands if inner.head == "product" else (inner,)
        names = [factor.name for factor in factors if factor.head == "symbol" and factor.name in _UNIT_VECTORS]
        if len(names) != 1 or names[0] in lengths:
            return ()
        scalars = tuple(factor for factor in factors if factor.name not in _UNIT_VECTORS)
        length = Formula("product", scalars) if len(scalars) > 1 else next(iter(scalars), number_formula(1))
        if is_negative:
            length = number_formula(-length.value) if length.head == "number" else Formula("negative", (length,))
        lengths[names[0]] = length
    used = _UNIT_VECTORS[:dimensions]
    if not lengths.keys() - {"i"} or not lengths.keys() <= {*used}:
        return ()
    return tuple(lengths.get(name, number_formula(0)) for name in used)
