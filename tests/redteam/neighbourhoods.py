"""Right answers with their neighbourhoods: other spellings, which are right, and answers that are nearly right."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from marl.core.types import Problem, VerifierCase
from marl.games.verifiers.mathematics import MathVerifier
from marl.protocols import VerifierConfig

_MATH = MathVerifier()
_CHANGED_DIGITS = 12
"""Maximum number of wrong neighbours of a gold that are made by changing one digit."""


@dataclass(frozen=True)
class Neighbourhood:
    """A question with its right answer, other spellings of this answer, and answers that are nearly right."""

    question: str
    gold: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    verifier: VerifierConfig = _MATH
    facts: Mapping[str, Any] = field(default_factory=dict)
    changes_digits: bool = False
    """True if every other digit in the gold makes a wrong answer."""


Rule = Callable[[random.Random], Neighbourhood]


@dataclass(frozen=True)
class Judged:
    """One answer to a gold with its verdict."""

    rule: str
    question: str
    gold: str
    answer: str
    right: bool
    accepted: bool
    why: str
    seconds: float
    """Processor time of the verdict, child processes included."""


def judged(rule: Rule, golds: int, seed: int) -> Iterator[Judged]:
    """Yield the verdicts on every answer to `golds` golds that `rule` makes."""
    rng = random.Random(f"{rule.__name__} {seed}")
    for _ in range(golds):
        made = rule(rng)
        wrong = [*made.wrong, *(with_other_digits(made.gold, rng) if made.changes_digits else ())]
        for answer, right in [(text, True) for text in made.right] + [(text, False) for text in dict.fromkeys(wrong)]:
            text = rf"\boxed{{{answer}}}" if made.verifier == _MATH and rule.__name__ != "languages" else answer
            case = VerifierCase(Problem("p", made.question, made.gold, facts=made.facts), text, text)
            started = _processor_seconds()
            verdict = made.verifier(case)
            seconds = _processor_seconds() - started
            name = rule.__name__
            yield Judged(name, made.question, made.gold, answer, right, verdict.score == 1, verdict.why, seconds)


def with_other_digits(text: str, rng: random.Random) -> list[str]:
    """Return copies of `text` that differ from it in one digit, which is no zero at the beginning of a number."""
    copies = list[str]()
    for index, sign in enumerate(text):
        if sign.isascii() and sign.isdigit():
            is_first = index == 0 or not text[index - 1].isdigit()
            digits = [digit for digit in "123456789" if digit != sign] + ([] if is_first or sign == "0" else ["0"])
            copies += [text[:index] + digit + text[index + 1 :] for digit in digits]
    return rng.sample(copies, min(len(copies), _CHANGED_DIGITS))


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
