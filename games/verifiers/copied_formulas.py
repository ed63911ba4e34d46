"""Formulas copied from the question into the answer, such as (x+1)^2 where its expansion is the right answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from marl.games.verifiers.formulas import Formula, read_formula
from marl.games.verifiers.tokens import UnreadableFormulaError

_WORDS = re.compile(r"\$+|\\[()\[\]]|(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z}])|[.,;:?!](?=\s|$)")
_IN_DOLLARS = re.compile(r"\$([^$]{1,300})\$")
_UNEVALUATED = frozenset(["sum", "product", "quotient", "power", "root", "call", "relation"])
_IN_ANY_ORDER = ("sum", "product", "union", "intersection")


def holds_copied_formula(
    answer: Formula, gold: Formula, question: str, is_same_value: Callable[[Formula, Formula], bool]
) -> bool:
    """Return True if `answer` copies an unevaluated formula of the question with the value of `gold`: not accepted."""
    answer, right = in_canonical_order(answer), in_canonical_order(gold)
    for formula in _unevaluated_formulas_in(question):
        if _contains(answer, formula) and not _contains(right, formula) and is_same_value(gold, formula):
            return True
    return False


def is_copied_relation(answer: Formula, gold: Formula, question: str) -> bool:
    """Return True if `answer` copies an equation of the question, and `gold` has another form: the copy is rejected."""
    canonical = in_canonical_order(answer)
    return canonical in _unevaluated_formulas_in(question) and canonical != in_canonical_order(gold)


@lru_cache(256)
def _unevaluated_formulas_in(question: str) -> frozenset[Formula]:
    """Return the unevaluated formulas between the words of a question, and the sides of its equations."""
    formulas = set[Formula]()
    for piece in (*_WORDS.split(question), *_IN_DOLLARS.findall(question)):
        try:
            tree = read_formula(piece.strip())
        except UnreadableFormulaError:
            continue
        for formula in (tree, *tree.operands) if tree.head in ("relation", "list") else (tree,):
            if formula.head in _UNEVALUATED:
                formulas.add(in_canonical_order(formula))
    return frozenset(formulas)


def in_canonical_order(tree: Formula) -> Formula:
    """Return `tree` with the terms of sums and the factors of products sorted, so that 2 + x equals x + 2."""
    operands = tuple(map(in_canonical_order, tree.operands))
    return replace(tree, operands=tuple(sorted(operands, key=repr)) if tree.head in _IN_ANY_ORDER else operands)


def _contains(tree: Formula, formula: Formula) -> bool:
    """Return True if `formula` occurs in `tree`, also as some terms of a longer sum or factors of a longer product."""
    for part in tree.walk():
        if part == formula:
            return True
        if part.head == formula.head in _IN_ANY_ORDER and Counter(formula.operands) <= Counter(part.operands):
            return True
    return False
