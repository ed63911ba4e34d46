"""A game that has problems, and graders that accept more, or less, than they should."""

from __future__ import annotations

import os
from collections.abc import Sequence

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.nim import NimConfig
from marl.protocols import VerifierConfig


class AdditionQuiz(NimConfig):
    """Nim, with sums to show."""

    kind: str = "quiz"

    def problems(self, max_count: int) -> Sequence[Problem]:
        facts = {"tests": ["f(2) == 4711"]}
        return tuple(Problem(f"sum-{k}", f"What is {k}+1?", str(k + 1), facts=facts) for k in range(max_count))


class LenientVerifier(VerifierConfig):
    """Accepts the kinds of answers that `accepts` names."""

    kind: str = "lenient"
    accepts: str

    def __call__(self, case: VerifierCase) -> Verdict:
        gold, answer = case.problem.answer, case.answer or ""
        kind = "empty" if not answer else "gold" if answer == gold else "other" if answer.isdigit() else "gibberish"
        return Verdict(float(kind in self.accepts.split()))


class LeakingVerifier(VerifierConfig):
    """Right verdicts, and reasons in words: a template of what is known about the problem and the answer."""

    kind: str = "talkative"
    says: str

    def __call__(self, case: VerifierCase) -> Verdict:
        problem, answer = case.problem, case.answer or ""
        size = len(problem.answer) - len(answer) + int(problem.answer) % 7
        known = {"gold": problem.answer, "size": size, "fact": problem.facts["tests"][0]}
        why = self.says.format(answer=answer, question=problem.question, **known)
        return Verdict(float(answer == problem.answer), "" if answer == problem.answer else why)


class CrashingVerifier(VerifierConfig):
    """Looks at form, and dies of an empty answer."""

    kind: str = "crash"
    checks_correctness = False

    def __call__(self, case: VerifierCase) -> Verdict:
        if not case.answer:
            os._exit(1)
        return Verdict(1.0)
