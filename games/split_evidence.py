"""Split evidence: every member of a team holds only some of the facts needed to answer a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Self

from pydantic import Field, model_validator

from marl.core.config import Config, choices_hint
from marl.core.types import Problem

NOTHING = "none"
"""Utterance of a perfect speaker without any needed part."""


def normalize_spaces(text: str) -> str:
    """Return `text` with single spaces between words."""
    return " ".join(text.split())


class SplitEvidence(Config):
    """The fact `evidence` of a problem: its parts, the parts needed for the answer, and the member to answer."""

    parts: dict[str, str] = Field(min_length=1)
    """Name of a part -> its text. Parts are dealt to the members in this order, round-robin."""
    needs: tuple[str, ...] = Field(min_length=1)
    """Names of the parts needed for the answer."""
    respondent: str
    """Name of a part. Its holder has to answer."""

    @model_validator(mode="after")
    def _check_part_names(self) -> Self:
        for field, names in (("needs", self.needs), ("respondent", (self.respondent,))):
            if unknown := [name for name in names if name not in self.parts]:
                raise ValueError(f"{field}: no part {unknown[0]!r}; {choices_hint(unknown[0], self.parts)}")
        return self

    @classmethod
    def of(cls, problem: Problem) -> SplitEvidence:
        """Return the evidence of `problem`; raise ValueError if the problem has no fact `evidence`."""
        if "evidence" not in problem.facts:
            raise ValueError(
                f"problem {problem.key!r} has no fact 'evidence' that could be dealt out; it has "
                f"{', '.join(problem.facts) or 'no facts'}; choices: evidence: whole, or a task with such a fact, "
                "such as records"
            )
        return cls.model_validate(problem.facts["evidence"])

    def items_of(self, member: str, team: Sequence[str]) -> list[str]:
        """Return the names of the parts dealt to `member`."""
        return list(self.parts)[team.index(member) :: len(team)]

    def respondent_in(self, team: Sequence[str]) -> str:
        """Return the member of `team` who has to answer."""
        return team[list(self.parts).index(self.respondent) % len(team)]

    def inferable(self, held: Iterable[str], heard: Iterable[str], answer: str) -> set[str]:
        """Return the names of the parts in `held` or quoted in the texts `heard`.

        A text with the correct `answer` counts as quoting all needed parts.
        """
        # Line breaks keep the texts apart; spaces around each text match full words only.
        texts = "\n".join(f" {normalize_spaces(text)} " for text in heard)
        parts = {*held}
        if f" {normalize_spaces(answer)} " in texts:
            parts.update(self.needs)
        for name, part in self.parts.items():
            if f" {normalize_spaces(part)} " in texts:
                parts.add(name)
        return parts

    def utterance(self, parts: Collection[str], answer: str) -> str:
        """Return a perfect speaker's utterance: the answer if `parts` suffice, else the needed texts in `parts`."""
        if all(name in parts for name in self.needs):
            return answer
        return " ".join(self.parts[name] for name in self.needs if name in parts) or NOTHING
