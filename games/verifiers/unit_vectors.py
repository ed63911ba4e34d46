r"""Vectors as sums of unit vectors: 2\mathbf{i} - \mathbf{j} + 4\mathbf{k}."""

from __future__ import annotations

from marl.games.verifiers.formulas import Formula, number_formula

_UNIT_VECTORS: tuple[str, ...] = ("i", "j", "k")


def vector_components(tree: Formula, dimension_count: int) -> tuple[Formula, ...]:
    """Return the components (2, -1, 4) of a sum such as 2i - j + 4k, or () for any other formula, also for a + bi."""
    components = dict.fromkeys(_UNIT_VECTORS[:dimension_count], number_formula(0))
    seen = set[str]()
    for term in tree.operands if tree.head == "sum" else (tree,):
        is_negative = term.head == "negative"
        inner = term.operands[0] if is_negative else term
        names, scalars = list[str](), list[Formula]()
        for factor in inner.operands if inner.head == "product" else (inner,):
            if factor.head == "symbol" and factor.name in _UNIT_VECTORS:
                names.append(factor.name)
            elif factor.name not in _UNIT_VECTORS:
                scalars.append(factor)
        if len(names) != 1 or names[0] in seen or names[0] not in components:
            return ()
        (name,) = names
        component = Formula("product", tuple(scalars)) if len(scalars) > 1 else [*scalars, number_formula(1)][0]
        if is_negative:
            is_number = component.head == "number"
            component = number_formula(-component.value) if is_number else Formula("negative", (component,))
        components[name] = component
        seen.add(name)
    return tuple(components.values()) if seen - {"i"} else ()
