"""Names that an answer may choose: the integer parameter of a general solution, the constant of integration."""

from __future__ import annotations

import re

from marl.games.verifiers.closed_form import variables
from marl.games.verifiers.formulas import Formula

_CONSTANTS = frozenset("CcKk")
_INTEGERS = Formula("symbol", name="mathbb Z")


def with_gold_names(gold: Formula, answer: Formula, question: str) -> Formula:
    """Return `answer` with its integer parameter and constant of integration renamed to those of `gold`."""
    gold_names, answer_names = _integer_parameters(gold), _integer_parameters(answer)
    if _can_rename(answer, answer_names, gold, gold_names):
        answer = _renamed(answer, *answer_names, *gold_names)
    gold_names, answer_names = added_constants(gold, question), added_constants(answer, question)
    if _can_rename(answer, answer_names, gold, gold_names):
        answer = _renamed(answer, *answer_names, *gold_names)
    return answer


def _can_rename(answer: Formula, answer_names: set[str], gold: Formula, gold_names: set[str]) -> bool:
    """Return True if both formulas have one name of a kind, and neither uses the name of the other."""
    if not len(gold_names) == len(answer_names) == 1:
        return False
    return not gold_names & variables(answer) and not answer_names & variables(gold)


def _integer_parameters(tree: Formula) -> set[str]:
    r"""Return the names declared as integers in a list: k \in \mathbb{Z}."""
    names = set[str]()
    for part in tree.operands:
        if part.head == "relation" and part.name == "in" and part.operands[1] == _INTEGERS:
            names.update(name.name for name in part.operands[:1] if name.head == "symbol")
    return names


def added_constants(tree: Formula, question: str) -> set[str]:
    """Return the constants C or k that are a term of `tree`, occur once in it and do not occur in the question."""
    side = tree.operands[-1] if tree.head == "relation" and tree.name == "=" else tree
    terms = side.operands if side.head == "sum" else ()
    names = [part.name for part in tree.walk() if part.head == "symbol"]
    added = {term.name for term in terms if term.name in _CONSTANTS and names.count(term.name) == 1}
    return {name for name in added if not re.search(rf"(?<![A-Za-z]){name}(?![A-Za-z])", question)}


def _renamed(tree: Formula, old: str, new: str) -> Formula:
    """Return `tree` with the symbol `old` renamed to `new`."""
    name = new if tree.head == "symbol" and tree.name == old else tree.name
    return Formula(tree.head, tuple(_renamed(part, old, new) for part in tree.operands), name, tree.value)
