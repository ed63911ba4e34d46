"""Evidence that is dealt out: each member of a team holds a part of what a problem's answer needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Self

from pydantic import Field, model_validator

from marl.config import Config, nearest
from marl.types import Problem

NOTHING = "none"
"""Utterance of a perfect speaker that knows nothing of what is needed."""


def normalize_spaces(text: str) -> str:
    """Return a text with one space between words."""
    return " ".join(text.split())


class DealtEvidence(Config):
    """The fact `evidence` of a problem: what there is to know, what of it the answer needs, and who has to answer."""

    parts: dict[str, str] = Field(min_length=1)
    """Name of a part -> its text. They are dealt out in this order, to one member after another."""
    needs: tuple[str, ...] = Field(min_length=1)
    """Names of the parts that the answer needs."""
    respondent: str
    """Name of a part: who holds it has to answer."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for field, names in (("needs", self.needs), ("respondent", (self.respondent,))):
            if unknown := [name for name in names if name not in self.parts]:
                raise ValueError(f"{field}: no part {unknown[0]!r}; {nearest(unknown[0], self.parts)}")
        return self

    @classmethod
    def of(cls, problem: Problem) -> DealtEvidence:
        """Return the evidence of a problem; raise ValueError if its facts hold none."""
        if "evidence" not in problem.facts:
            raise ValueError(
                f"problem {problem.key!r} has no fact 'evidence' that could be dealt out; it has "
                f"{', '.join(problem.facts) or 'no facts'}; choices: evidence: whole, or a task with such a fact, "
                "such as records"
            )
        return cls.model_validate(problem.facts["evidence"])

    def held_by(self, member: str, team: Sequence[str]) -> list[str]:
        """Return the names of the parts that `member` holds."""
        return list(self.parts)[team.index(member) :: len(team)]

    def respondent_in(self, team: Sequence[str]) -> str:
        """Return the member that has to answer."""
        return team[list(self.parts).index(self.respondent) % len(team)]

    def known(self, held: Iterable[str], heard: Iterable[str], answer: str) -> set[str]:
        """Return the names of the parts known from what is held and heard; who hears the answer knows what it needs."""
        texts = [f" {normalize_spaces(text)} " for text in heard]

        def is_heard(text: str) -> bool:
            return any(f" {normalize_spaces(text)} " in other for other in texts)

        implied = self.needs if is_heard(answer) else ()
        return {*held, *implied, *(name for name, part in self.parts.items() if is_heard(part))}

    def utterance(self, known: Collection[str], answer: str) -> str:
        """Return what a perfect speaker says: the answer if it knows enough, else all that it knows of what counts."""
        if all(name in known for name in self.needs):
            return answer
        return " ".join(self.parts[name] for name in self.needs if name in known) or NOTHING
