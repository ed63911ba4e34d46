"""Verdicts on answers that are formulas, also where they are stated with their rounded value or with other names."""

from __future__ import annotations

import re

from games.verifiers.antiderivatives import is_same_antiderivative
from games.verifiers.approximations import approximated
from games.verifiers.closed_form import is_scalar, symbols
from games.verifiers.congruences import read_congruence
from games.verifiers.formulas import Tree, read_formula
from games.verifiers.notation import plain, without_text_commands
from games.verifiers.reading import quote, reject
from games.verifiers.renaming import renamed
from games.verifiers.tokens import UnreadableError
from marl.types import Verdict

_GROUP = re.compile(r"\\(?:begin|end)group\b")
_EMPTY = re.compile(
    r"(?:[a-z]\s*\\in\s*)?(?:\\emptyset|\\\{\s*\\\})"
    r"|(?:there\s+(?:is|are)\s+)?no\s+(?:real\s+)?solutions?(?:\s+exists?)?",
    re.I,
)


def is_number(text: str) -> bool:
    """Return True if a text is a formula without variables, sets or words."""
    try:
        tree = read_formula(text)
    except UnreadableError:
        return False
    return is_scalar(tree) and not symbols(tree)


def is_empty(text: str) -> bool:
    """Return True for the empty set, in signs or as "no solution"."""
    return bool(_EMPTY.fullmatch(_GROUP.sub(" ", without_text_commands(plain(text))).strip(" .")))


def has_unit(text: str) -> bool:
    """Return True if words follow a formula, as its unit does."""
    try:
        return read_formula(text).head == "measured"
    except UnreadableError:
        return False


def compare_formulas(answer: str, gold: str, question: str) -> Verdict:
    """Return the verdict on an answer that is no rational number."""
    if is_empty(gold) and is_empty(answer):
        return Verdict(1.0)
    congruence = read_congruence(gold)
    if congruence is not None and read_congruence(answer) == congruence:
        return Verdict(1.0)
    try:
        right = read_formula(gold)
    except UnreadableError:
        return reject("not the right answer letter by letter, which alone can be compared")  # an integral, say
    try:
        formula = read_formula(answer, frozenset(name for name in symbols(right) if len(name) == 1))
    except UnreadableError as error:
        return reject(f"{quote(answer)} cannot be read: {error}")
    if is_same_antiderivative(right, renamed(right, formula, question), question):
        return Verdict(1.0)
    readings = [renamed(right, formula, question), *_read_each(approximated(answer, gold))]
    from games.verifiers.solutions import Solutions

    right_one = any(Solutions(question).same(right, reading) for reading in readings)
    return Verdict(1.0) if right_one else reject(f"{quote(answer)} is not right")


def _read_each(texts: tuple[str, ...]) -> list[Tree]:
    return [read_formula(text) for text in texts]
