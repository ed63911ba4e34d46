"""Whoever says whether an answer is good."""

from __future__ import annotations

from typing import ClassVar, Literal

from roles import parsing
from roles.answer import AnsweringRole
from roles.base import TemplateText
from roles.rating import RatingRole


class Critic(RatingRole):
    """Says yes or no to what it heard, or gives it a score from 0 to 1."""

    kind: str = "critic"
    shown: ClassVar[tuple[str, ...]] = (*AnsweringRole.shown, "verdict", "scale")
    instructions: TemplateText = "{% extends 'critic.jinja2' %}"
    verdict: Literal["yes_no", "score"] = "yes_no"

    def meant(self, said: str) -> str | None:
        return parsing.choice(said, ("yes", "no")) if self.verdict == "yes_no" else self.rated(said)

    def worded(self, move: str) -> str:
        return move if self.verdict == "yes_no" else self.rating(move)
