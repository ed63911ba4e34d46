"""A source of problems, a verifier and a role from outside, for the team game."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_lowercase
from typing import Any

from marl.protocols import RoleConfig, Split, TaskConfig, Tasks, ToolConfig, VerifierConfig, View
from marl.types import Case, Message, Problem, Verdict


class Successors(TaskConfig):
    """Which letter comes next? Even letters are trained on, odd ones held out."""

    kind: str = "successors"

    def build(self) -> Tasks:
        return self

    def size(self, split: Split) -> int:
        return 12

    def problem(self, split: Split, index: int) -> Problem:
        return _after(2 * index + (split == "held_out"))

    def posed(self, text: str) -> Problem | None:
        return None


def _after(number: int) -> Problem:
    letter, follower = ascii_lowercase[number], ascii_lowercase[number + 1]
    return Problem(letter, letter, follower, (letter,))


class Near(VerifierConfig):
    """Half a point for a letter that is one off."""

    kind: str = "near"

    def __call__(self, case: Case) -> Verdict:
        gold, said = case.problem.answer, case.answer or ""
        if said == gold:
            return Verdict(1.0)
        off = abs(ord(said) - ord(gold)) if len(said) == 1 else 26
        return Verdict(0.5 if off == 1 else 0.0, f"{off} letters off")


class Alphabet(ToolConfig):
    """The alphabet from a letter on."""

    kind: str = "alphabet"

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        return ascii_lowercase[ascii_lowercase.index(arguments["after"]) :]


class Speller(RoleConfig):
    """Says one letter."""

    kind: str = "speller"

    def messages(self, view: View) -> tuple[Message, ...]:
        return (Message("user", view.observation["text"]),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        return text if len(text) == 1 else None

    def phrase(self, move: str) -> str:
        return move
