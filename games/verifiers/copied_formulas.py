"""Formulas copied from the question into the answer, such as (x+1)^2 where its expansion is the right answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from marl.games.verifiers.formulas import Formula, read_formula
from marl.games.verifiers.tokens import UnreadableError

_WORDS = re.compile(r"\$+|\\[()\[\]]|(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z}])|[.,;:?!](?=\s|$)")
_UNEVALUATED = frozenset(["sum", "product", "quotient", "power", "root", "call", "relation"])
_IN_ANY_ORDER = ("sum", "product")


def holds_copied_formula(
    answer: Formula, gold: Formula, question: str, same_value: Callable[[Formula, Formula], bool]
) -> bool:
    """Return True if `answer` repeats an unevaluated formula of the question with the value of `gold`: reject it."""
    answer, right = _sorted(answer), _sorted(gold)
    for formula in _formulas(question):
        if _contains(answer, formula) and not _contains(right, formula) and same_value(gold, formula):
            return True
    return False


def is_copied_relation(answer: Formula, gold: Formula, question: str) -> bool:
    """Return True if `answer` is an equation of the question, and `gold` is written otherwise: reject it."""
    return _sorted(answer) in _formulas(question) and _sorted(answer) != _sorted(gold)


@lru_cache(256)
def _formulas(question: str) -> frozenset[Formula]:
    """Return the unevaluated formulas between the words of a question, also those within equations and lists."""
    formulas = set[Formula]()
    for piece in _WORDS.split(question):
        try:
            tree = read_formula(piece.strip())
        except UnreadableError:
            continue
        formulas.update(map(_sorted, (tree, *tree.operands) if tree.head in ("relation", "list") else (tree,)))
    return frozenset(tree for tree in formulas if tree.head in _UNEVALUATED)


def _sorted(tree: Formula) -> Formula:
    """Return `tree` with terms and factors in canonical order."""
    parts = tuple(map(_sorted, tree.operands))
    return replace(tree, operands=tuple(sorted(parts, key=repr)) if tree.head in _IN_ANY_ORDER else parts)


def _contains(tree: Formula, formula: Formula) -> bool:
    """Return True if `formula` is a part of `tree`, or a subset of the terms or factors of a part."""
    for part in tree.walk():
        if part == formula:
            return True
        if part.head == formula.head in _IN_ANY_ORDER and Counter(formula.operands) <= Counter(part.operands):
            return True
    return False
