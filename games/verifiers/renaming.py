"""Names that an answer may choose: the integer of a general solution, the constant of integration."""

from __future__ import annotations

import re
from collections.abc import Callable

from games.verifiers.closed_form import symbols
from games.verifiers.formulas import Tree

_CONSTANTS = frozenset("CcKk")
_INTEGERS = Tree("symbol", name="mathbb Z")


def renamed(gold: Tree, answer: Tree, question: str) -> Tree:
    """Return the answer with the right answer's names for its integer and for its constant of integration."""
    finders: tuple[Callable[[Tree], set[str]], ...] = (_integers, lambda tree: added_constants(tree, question))
    for find in finders:
        name, other = find(gold), find(answer)
        if len(name) == len(other) == 1 and not name & symbols(answer) and not other & symbols(gold):
            answer = _with_name(answer, *other, *name)
    return answer


def _integers(tree: Tree) -> set[str]:
    r"""Return the names that a list declares as integers: k \in \mathbb{Z}."""
    relations = [part for part in tree.parts if part.head == "relation" and part.name == "in"]
    return {part.parts[0].name for part in relations if part.parts[1] == _INTEGERS and part.parts[0].head == "symbol"}


def added_constants(tree: Tree, question: str) -> set[str]:
    """Return the constants that are added to a formula, stand nowhere else in it and are not named by the question."""
    side = tree.parts[-1] if tree.head == "relation" and tree.name == "=" else tree
    terms = side.parts if side.head == "sum" else ()
    names = [part.name for part in tree.walk() if part.head == "symbol"]
    added = {term.name for term in terms if term.name in _CONSTANTS and names.count(term.name) == 1}
    return {name for name in added if not re.search(rf"(?<![A-Za-z]){name}(?![A-Za-z])", question)}


def _with_name(tree: Tree, name: str, other: str) -> Tree:
    is_named = tree.head == "symbol" and tree.name == name
    return Tree(
        tree.head,
        tuple(_with_name(part, name, other) for part in tree.parts),
        other if is_named else tree.name,
        tree.value,
    )
