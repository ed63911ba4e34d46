"""A source of problems, a verifier and a role from outside, for the team game."""

from __future__ import annotations

from marl.core.types import Problem, Verdict, VerifierCase
from marl.protocols import Split, TaskConfig, TaskProblems, VerifierConfig
from outside.coins import Terse

LETTERS = "abcdefgh"


class Successors(TaskConfig):
    """Which letter comes next? Every other letter is held out."""

    kind: str = "successors"

    def build(self) -> TaskProblems:
        return self

    def problem_count(self, split: Split) -> int:
        return len(LETTERS) // 2

    def problem(self, split: Split, index: int) -> Problem:
        letter = LETTERS[2 * index + (split == "held_out")]
        return Problem(letter, letter, chr(ord(letter) + 1), (letter,))

    def parse_posed_problem(self, text: str) -> Problem | None:
        return None


class Near(VerifierConfig):
    """Half a point for a letter that is one off."""

    kind: str = "near"

    def __call__(self, case: VerifierCase) -> Verdict:
        if not case.answer or len(case.answer) > 1:
            return Verdict(0.0, "no letter")
        off = abs(ord(case.answer) - ord(case.problem.answer))
        return Verdict({0: 1.0, 1: 0.5}.get(off, 0.0), f"{off} off")


class Speller(Terse):
    """Says a letter and nothing else."""

    kind: str = "speller"
