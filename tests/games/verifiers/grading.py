"""Verdicts of the verifiers of numbers and formulas, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.mathematics import MathVerifier
from marl.games.verifiers.numeric import NumericVerifier

_VERIFIERS = {"numeric": NumericVerifier(), "math": MathVerifier()}
Pairs = Iterable[tuple[str, str]]


def verdict(kind: str, gold: str, answer: str, question: str = "") -> Verdict:
    """Return the verdict on an answer that a role read."""
    return _VERIFIERS[kind](VerifierCase(Problem("p", question, gold), answer, answer))


def accepted(kind: str, pairs: Pairs, question: str = "") -> list[tuple[str, str]]:
    """Return those of some pairs of right answer and answer in which the answer is accepted."""
    return [(gold, answer) for gold, answer in pairs if verdict(kind, gold, answer, question).score == 1]


def rejected(kind: str, pairs: Pairs, question: str = "") -> list[tuple[str, str]]:
    """Return those in which it is not."""
    return [(gold, answer) for gold, answer in pairs if verdict(kind, gold, answer, question).score != 1]
