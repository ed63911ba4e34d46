"""Formulas that are copied from the question, such as (x+1)^2 that was to be expanded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from games.verifiers.formulas import Tree, read_formula
from games.verifiers.tokens import UnreadableError

_WORDS = re.compile(r"\$+|\\[()\[\]]|(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z}])|[.,;:?!](?=\s|$)")
_UNEVALUATED = frozenset(["sum", "product", "quotient", "power", "root", "call", "relation"])
_IN_ANY_ORDER = ("sum", "product")


def is_copied(answer: Tree, gold: Tree, question: str, same_value: Callable[[Tree, Tree], bool]) -> bool:
    """Return True if an answer holds a formula of the question that equals the right answer in another form."""
    answer, right = _sorted(answer), _sorted(gold)
    copied = [each for each in _formulas(question) if _holds(answer, each) and not _holds(right, each)]
    return any(same_value(gold, each) for each in copied)


def is_copied_relation(answer: Tree, gold: Tree, question: str) -> bool:
    """Return True if an equation stands in the question as it is, and the right answer is written otherwise."""
    return _sorted(answer) in _formulas(question) and _sorted(answer) != _sorted(gold)


@lru_cache(256)
def _formulas(question: str) -> frozenset[Tree]:
    """Return the formulas between the words of a question."""
    formulas = set[Tree]()
    for piece in _WORDS.split(question):
        try:
            tree = read_formula(piece.strip())
        except UnreadableError:
            continue
        formulas.update(map(_sorted, (tree, *tree.parts) if tree.head in ("relation", "list") else (tree,)))
    return frozenset(tree for tree in formulas if tree.head in _UNEVALUATED)


def _sorted(tree: Tree) -> Tree:
    """Return the formula with terms and factors in a fixed order."""
    parts = tuple(map(_sorted, tree.parts))
    return replace(tree, parts=tuple(sorted(parts, key=repr)) if tree.head in _IN_ANY_ORDER else parts)


def _holds(tree: Tree, formula: Tree) -> bool:
    """Return True if a formula stands anywhere in a tree, also as some of the terms of a sum."""
    return any(
        part == formula
        or (part.head == formula.head in _IN_ANY_ORDER and Counter(formula.parts) <= Counter(part.parts))
        for part in tree.walk()
    )
