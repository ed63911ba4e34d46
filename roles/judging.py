"""Roles that judge other agents' turns: verdicts, and scores on a scale."""

from __future__ import annotations

from typing import ClassVar, Literal

from marl.roles import parsing
from marl.roles.answering import AnsweringRole, TagName
from marl.roles.base import TemplateText

_RANGES = {"unit": (0.0, 1.0), "ten": (1.0, 10.0), "sage": (0.0, 10.0)}
_SWAPPED = {"1": "2", "2": "1"}


class ScoringRole(AnsweringRole):
    """Base of roles that answer with a verdict, by default a score; with `answer: json` it is the field `tag`."""

    template_fields: ClassVar[tuple[str, ...]] = (*AnsweringRole.template_fields, "scale")
    tag: TagName = "verdict"
    scale: Literal["unit", "ten", "sage"] = "unit"
    """Scale of scores: `unit` from 0 to 1; `ten` from 1 to 10; `sage` as in SAGE (arXiv 2603.15255), where scores up to
    1 are on the scale from 0 to 1 and higher scores on the scale from 1 to 10. The move is a number from 0 to 1 with at
    most four decimals."""

    def extract_answer(self, text: str) -> str | None:
        if self.answer != "json":
            return super().extract_answer(text)
        value = (parsing.json_object(text, self.json_schema) or {}).get(self.tag)
        if isinstance(value, float):
            return f"{value:.12f}"
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    def format_answer(self, answer: str) -> str:
        if self.answer != "json":
            return super().format_answer(answer)
        number = parsing.json_value(answer)
        return parsing.compact_json({self.tag: number if isinstance(number, int | float) else answer})

    def answer_to_move(self, answer: str) -> str | None:
        """Return the score in `answer`, rescaled to [0, 1], or None (never a neutral score) if it is unreadable."""
        low, high = _RANGES[self.scale]
        value = parsing.score(answer, low, high)
        if value is None:
            return None
        if self.scale == "ten" or (self.scale == "sage" and value > 1):
            value = (value - 1) / 9
        # Adding 0 turns -0.0 into 0.0, whose text has no sign.
        return f"{value + 0.0:.4f}".rstrip("0").rstrip(".")

    def move_to_answer(self, move: str) -> str:
        """Return the score `move` on the role's scale.

        Raises:
            ValueError: if `move` is no score from 0 to 1.
        """
        value = parsing.score(move, 0.0, 1.0)
        if value is None:
            raise ValueError(f"role {self.kind}: {move!r} is no score from 0 to 1")
        return f"{1 + 9 * value:.12g}" if self.scale == "ten" else move


class CriticRole(ScoringRole):
    """Judges the turns it heard with yes or no, or with a score from 0 to 1."""

    kind: str = "critic"
    template_fields: ClassVar[tuple[str, ...]] = (*ScoringRole.template_fields, "verdict")
    instructions: TemplateText = "{% extends 'critic.jinja2' %}"
    verdict: Literal["yes_no", "score"] = "yes_no"
    """Form of the verdict: yes or no, or a score from 0 to 1."""

    def answer_to_move(self, answer: str) -> str | None:
        if self.verdict == "yes_no":
            return parsing.match_option(answer, ("yes", "no"))
        return super().answer_to_move(answer)

    def move_to_answer(self, move: str) -> str:
        return move if self.verdict == "yes_no" else super().move_to_answer(move)


class JudgeRole(ScoringRole):
    """Prefers one of two candidates, or scores one candidate from 0 to 1, by a rubric.

    The candidates are the agents that the judge hears, in the order of their first turns. Judges tend to prefer one
    position; two judges, one of them with `swap`, cancel this bias.
    """

    kind: str = "judge"
    template_fields: ClassVar[tuple[str, ...]] = (*ScoringRole.template_fields, "mode", "rubric", "ties", "swap")
    instructions: TemplateText = "{% extends 'judge.jinja2' %}"
    prompt: TemplateText = "{% extends 'pair.jinja2' %}"
    mode: Literal["pairwise", "score"] = "pairwise"
    """Compare two candidates, or score one."""
    rubric: str = ""
    """Criteria of a good answer, in words."""
    ties: bool = False
    """Allow the verdict `tie`."""
    swap: bool = False
    """Show the candidates in reverse order. The move still numbers the candidates in the original order."""

    def answer_to_move(self, answer: str) -> str | None:
        if self.mode == "score":
            return super().answer_to_move(answer)
        verdict = parsing.match_option(answer, ("1", "2", "tie") if self.ties else ("1", "2"))
        return self.move_to_answer(verdict) if verdict else None

    def move_to_answer(self, move: str) -> str:
        if self.mode == "score":
            return super().move_to_answer(move)
        return _SWAPPED.get(move, move) if self.swap else move
