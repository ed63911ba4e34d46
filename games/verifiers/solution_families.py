r"""General solutions with arbitrary constants, such as y = C_1 \cos x + C_2 \sin x, whose constants have any names."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import permutations

from marl.games.verifiers.closed_form import is_scalar, variables
from marl.games.verifiers.formulas import Formula
from marl.games.verifiers.symbolic import compare, difference, is_multiple, substitute
from marl.games.verifiers.unknown_functions import is_unknown_call

_CONSTANT = re.compile(r"[ABCDEKabck](?:_\d)?'?|[ABCKck]\d")
_ASKS = re.compile(
    r"\bdifferential equation|y'|\\frac\{d\^?2?y\}|\bdy/d[xt]\b|\\d?dot|\bgeneral solution|\brecurrence"
    r"|\brecursion|\bODE\b",
    re.I,
)
_COMMANDS = re.compile(r"\\[A-Za-z]+|[A-Za-z]{2,}")
_MAX_CONSTANTS = 3


def is_same_family(gold: Formula, answer: Formula, question: str) -> bool:
    """Return True if two general solutions consist of the same functions, for some names of their constants.

    Solutions that are linear in their constants may differ by multiples of the constants; others by their names alone.
    """
    if not (_ASKS.search(question) or (not question.strip() and _has_indexed_constants(gold))):
        return False
    right, stated = _right_side(gold), _right_side(answer)
    lefts = {_unknown_function_name(gold), _unknown_function_name(answer)} - {""}
    if right is None or stated is None or len(lefts) > 1:
        return False
    names, others = _constants(right, question), _constants(stated, question)
    if not names or len(names) != len(others) or len(names) > _MAX_CONSTANTS:
        return False
    if variables(right) - set(names) != variables(stated) - set(others):
        return False
    terms, other_terms = _linear_terms(right, names), _linear_terms(stated, others)
    if terms and other_terms:
        return _spans_same(terms, other_terms)
    for order in permutations(names):
        renamed = stated
        for old, new in zip(others, order, strict=True):
            renamed = _with_symbol(renamed, old, f"{new}#")
        for new in order:
            renamed = _with_symbol(renamed, f"{new}#", new)
        if compare(right, renamed):
            return True
    return False


def _has_indexed_constants(tree: Formula) -> bool:
    return any(re.fullmatch(r"[Cc]_\d", name) for name in variables(tree))


def _right_side(tree: Formula) -> Formula | None:
    """Return the right side of y = ..., or a formula without sides; None for any other formula."""
    if tree.head == "relation":
        return (
            tree.operands[1] if tree.name == "=" and len(tree.operands) == 2 and is_scalar(tree.operands[1]) else None
        )
    return tree if is_scalar(tree) else None


def _unknown_function_name(tree: Formula) -> str:
    """Return the name of the unknown function: y for y and for y(x), "" if the formula has no left side."""
    if tree.head != "relation":
        return ""
    side = tree.operands[0]
    if side.head == "product" and len(side.operands) == 2 and side.operands[0].head == "symbol":
        return side.operands[0].name  # the parser reads y(x) as a product of y and x
    return side.name if side.head == "symbol" or is_unknown_call(side) else repr(side)


def _constants(tree: Formula, question: str) -> list[str]:
    """Return the arbitrary constants of a formula, in a fixed order: usual names that the question does not use."""
    in_question = set(re.findall(r"[A-Za-z]", _COMMANDS.sub(" ", question)))
    return sorted(name for name in variables(tree) if _CONSTANT.fullmatch(name) and name not in in_question)


def _linear_terms(tree: Formula, names: list[str]) -> list[Formula]:
    """Return f, g, h of f + A g + B h for the constants A and B, or [] if the formula is not linear in them."""
    zeros = dict.fromkeys(names, Fraction(0))
    terms = [substitute(tree, zeros)]
    total = [terms[0]]
    for name in names:
        terms.append(difference(substitute(tree, zeros | {name: Fraction(1)}), terms[0]))
        total.append(Formula("product", (Formula("symbol", name=name), terms[-1])))
    return terms if compare(tree, Formula("sum", tuple(total))) else []


def _spans_same(terms: list[Formula], other_terms: list[Formula]) -> bool:
    """Return True if the functions multiplied by constants are the same up to factors, and so are the other terms."""
    remaining = other_terms[1:]
    for term in terms[1:]:
        found = next((other for other in remaining if is_multiple(term, other)), None)
        if found is None:
            return False
        remaining.remove(found)
    if compare(terms[0], other_terms[0]):
        return True
    shift = difference(terms[0], other_terms[0])
    return any(is_multiple(shift, term) for term in terms[1:])


def _with_symbol(tree: Formula, old: str, new: str) -> Formula:
    name = new if tree.head == "symbol" and tree.name == old else tree.name
    return Formula(tree.head, tuple(_with_symbol(part, old, new) for part in tree.operands), name, tree.value)
