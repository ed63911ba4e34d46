"""Split evidence: every member of a team holds only some of the facts needed to answer a problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Self

from pydantic import Field, model_validator

from marl.core.config import Config, choices_hint
from marl.core.types import Problem

NOTHING = "none"
"""Utterance of a perfect speaker that knows no part needed for the answer."""


def normalize_spaces(text: str) -> str:
    """Return `text` with one space between words, and none at its ends."""
    return " ".join(text.split())


class EvidenceInParts(Config):
    """Evidence of a problem, its fact `evidence`: named parts that are dealt to the members of a team."""

    parts: dict[str, str] = Field(min_length=1)
    """Name of a part -> its text. The parts are dealt to the team's members in this order, round-robin."""
    needs: tuple[str, ...] = Field(min_length=1)
    """Names of the parts that are needed to know the answer."""
    respondent: str
    """Name of the part whose holder has to give the team's answer."""

    @model_validator(mode="after")
    def _check_part_names(self) -> Self:
        for field, names in (("needs", self.needs), ("respondent", (self.respondent,))):
            if unknown := [name for name in names if name not in self.parts]:
                raise ValueError(f"{field}: no part {unknown[0]!r}; {choices_hint(unknown[0], self.parts)}")
        return self

    @classmethod
    def from_problem(cls, problem: Problem) -> EvidenceInParts:
        """Return the evidence of `problem`; raise ValueError if the problem has no fact `evidence`."""
        if "evidence" not in problem.facts:
            raise ValueError(
                f"problem {problem.key!r} has no fact 'evidence' that could be dealt out; it has "
                f"{', '.join(problem.facts) or 'no facts'}; choices: evidence: whole, or a task with such a fact, "
                "such as records"
            )
        return cls.model_validate(problem.facts["evidence"])

    def part_names_dealt_to(self, agent: str, team_agents: Sequence[str], is_split: bool) -> list[str]:
        """Return the names of the parts that `agent` of `team_agents` gets: all parts unless `is_split`."""
        return list(self.parts)[team_agents.index(agent) :: len(team_agents)] if is_split else list(self.parts)

    def agent_that_must_answer(self, team_agents: Sequence[str]) -> str:
        """Return the member of `team_agents` who has to answer."""
        return team_agents[list(self.parts).index(self.respondent) % len(team_agents)]

    def perfect_utterance(self, own_part_names: Collection[str], heard_texts: Iterable[str], answer: str) -> str:
        """Return a perfect speaker's utterance: `answer`, or the known needed parts if a needed part is unknown.

        A speaker knows the parts in `own_part_names`, the parts quoted in `heard_texts`, and all needed parts if one of
        these texts quotes `answer`, the right answer.
        """
        # Line breaks keep matches within one text, and spaces around each text let only full words match.
        texts = "\n".join(f" {normalize_spaces(text)} " for text in heard_texts)
        if f" {normalize_spaces(answer)} " in texts:
            return answer
        known: list[str] = []
        for name in self.needs:
            if name in own_part_names or f" {normalize_spaces(self.parts[name])} " in texts:
                known.append(self.parts[name])
        return answer if len(known) == len(self.needs) else " ".join(known) or NOTHING
