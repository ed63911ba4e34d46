"""Whoever compares what others said."""

from __future__ import annotations

from typing import ClassVar, Literal

from roles import parsing
from roles.answer import AnsweringRole
from roles.base import TemplateText
from roles.rating import RatingRole

_OTHER = {"1": "2", "2": "1"}


class Judge(RatingRole):
    """Prefers one of two candidates, or gives a score from 0 to 1, by a rubric.

    Candidates are the agents that it hears, in the order in which they spoke first. Judges tend to prefer a place, so
    that two of them, one with `swap`, together do not.
    """

    kind: str = "judge"
    shown: ClassVar[tuple[str, ...]] = (*AnsweringRole.shown, "mode", "scale", "rubric", "ties", "swap")
    instructions: TemplateText = "{% extends 'judge.jinja2' %}"
    prompt: TemplateText = "{% extends 'pair.jinja2' %}"
    mode: Literal["pairwise", "score"] = "pairwise"
    rubric: str = ""
    """What makes an answer good, in words."""
    ties: bool = False
    """Whether `tie` is a verdict as well."""
    swap: bool = False
    """Show the candidates in the opposite order. The move names them in the usual one."""

    def meant(self, said: str) -> str | None:
        if self.mode == "score":
            return self.rated(said)
        picked = parsing.choice(said, ("1", "2", "tie") if self.ties else ("1", "2"))
        return self.worded(picked) if picked else None

    def worded(self, move: str) -> str:
        if self.mode == "score":
            return self.rating(move)
        return _OTHER.get(move, move) if self.swap else move
