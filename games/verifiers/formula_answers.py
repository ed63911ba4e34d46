"""Verdicts on formulas, also with a rounded value beside them or with other names for constants."""

from __future__ import annotations

import re

from marl.core.types import Verdict
from marl.games.verifiers.answer_verifier import quote, reject
from marl.games.verifiers.antiderivatives import is_same_antiderivative
from marl.games.verifiers.approximations import exact_and_rounded
from marl.games.verifiers.arbitrary_constants import with_gold_names
from marl.games.verifiers.closed_form import is_scalar, variables
from marl.games.verifiers.congruences import read_congruence
from marl.games.verifiers.formulas import read_formula
from marl.games.verifiers.latex_notation import GROUP_COMMAND, normalize_notation, without_text_commands
from marl.games.verifiers.tokens import UnreadableError

_EMPTY = re.compile(
    r"(?:[a-z]\s*\\in\s*)?(?:\\emptyset|\\\{\s*\\\})"
    r"|(?:there\s+(?:is|are)\s+)?no\s+(?:real\s+)?solutions?(?:\s+exists?)?",
    re.I,
)


def is_number(text: str) -> bool:
    """Return True if `text` is a formula without variables, sets or words."""
    try:
        tree = read_formula(text)
    except UnreadableError:
        return False
    return is_scalar(tree) and not variables(tree)


def is_empty(text: str) -> bool:
    """Return True if `text` is the empty set, in signs or as "no solution"."""
    return bool(_EMPTY.fullmatch(GROUP_COMMAND.sub(" ", without_text_commands(normalize_notation(text))).strip(" .")))


def has_unit(text: str) -> bool:
    """Return True if `text` is a formula with words after it, such as a unit."""
    try:
        return read_formula(text).head == "measured"
    except UnreadableError:
        return False


def compare_formulas(answer: str, gold: str, question: str) -> Verdict:
    """Return the verdict on `answer` where the right answer is no rational number."""
    if is_empty(gold) and is_empty(answer):
        return Verdict(1.0)
    congruence = read_congruence(gold)
    if congruence is not None and read_congruence(answer) == congruence:
        return Verdict(1.0)
    try:
        right = read_formula(gold)
    except UnreadableError:
        # The right answer is an integral, say: equal text was accepted before.
        return reject("not the right answer letter by letter, which alone can be compared")
    try:
        # Letters of the right answer's variables are products, so that ab is a times b; other words are text.
        formula = read_formula(answer, frozenset(name for name in variables(right) if len(name) == 1))
    except UnreadableError as error:
        return reject(f"{quote(answer)} cannot be read: {error}")
    renamed = with_gold_names(right, formula, question)
    if is_same_antiderivative(right, renamed, question):
        return Verdict(1.0)
    # Here, so that `marl check` does not load mpmath.
    from marl.games.verifiers.answer_comparison import AnswerComparison

    comparison = AnswerComparison(question)
    for reading in (renamed, *map(read_formula, exact_and_rounded(answer, gold))):
        if comparison.is_same(right, reading):
            return Verdict(1.0)
    return reject(f"{quote(answer)} is not right")
