"""A game that has problems, and graders that accept more, or less, than they should."""

from __future__ import annotations

import os
from collections.abc import Sequence

from games.nim import NimConfig
from marl.protocols import VerifierConfig
from marl.types import Case, Problem, Verdict


class Quiz(NimConfig):
    """Nim, with sums to show."""

    kind: str = "quiz"

    def problems(self, n: int) -> Sequence[Problem]:
        return tuple(Problem(f"sum-{k}", f"What is {k}+1?", str(k + 1)) for k in range(n))


class Lenient(VerifierConfig):
    """Accepts the kinds of answers that `accepts` names."""

    kind: str = "lenient"
    accepts: str

    def __call__(self, case: Case) -> Verdict:
        gold, answer = case.problem.answer, case.answer or ""
        kind = "empty" if not answer else "gold" if answer == gold else "other" if answer.isdigit() else "gibberish"
        return Verdict(float(kind in self.accepts.split()))


class Crash(VerifierConfig):
    """Looks at form, and dies."""

    kind: str = "crash"
    grades = False

    def __call__(self, case: Case) -> Verdict:
        os._exit(1)
