"""Roles that judge other agents' turns: verdicts, and scores on a scale."""

from __future__ import annotations

from typing import ClassVar, Literal

from roles import parsing
from roles.answering import AnsweringRole, TagName
from roles.base import TemplateText

_RANGES = {"unit": (0.0, 1.0), "ten": (1.0, 10.0), "sage": (0.0, 10.0)}
_SWAPPED = {"1": "2", "2": "1"}


class RatingRole(AnsweringRole):
    """Base of roles that give a verdict; here a score. With `answer: json`, the verdict is the field `tag`."""

    template_fields: ClassVar[tuple[str, ...]] = (*AnsweringRole.template_fields, "scale")
    tag: TagName = "verdict"
    scale: Literal["unit", "ten", "sage"] = "unit"
    """Scale of scores: from 0 to 1; from 1 to 10; or as SAGE (arXiv 2603.15255) reads them, from 0 to 1 as they are and
    from above 1 to 10 as from 1 to 10. The move is a number from 0 to 1 with at most four decimals."""

    def read_answer(self, text: str) -> str | None:
        if self.answer != "json":
            return super().read_answer(text)
        value = (parsing.json_object(text, self.json_schema) or {}).get(self.tag)
        if isinstance(value, float):
            return f"{value:.12f}"
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    def write_answer(self, answer: str) -> str:
        if self.answer != "json":
            return super().write_answer(answer)
        number = parsing.json_value(answer)
        return parsing.compact({self.tag: number if isinstance(number, int | float) else answer})

    def move_of(self, answer: str) -> str | None:
        """Return the score in `answer`, brought to [0, 1]; None, never a neutral score, where there is none."""
        low, high = _RANGES[self.scale]
        value = parsing.score(answer, low, high)
        if value is None:
            return None
        if self.scale == "ten" or (self.scale == "sage" and value > 1):
            value = (value - 1) / 9
        # Adding 0 makes 0 of -0.
        return f"{value + 0.0:.4f}".rstrip("0").rstrip(".")

    def answer_of(self, move: str) -> str:
        """Return the score `move` on the role's scale.

        Raises:
            ValueError: if `move` is no score from 0 to 1.
        """
        value = parsing.score(move, 0.0, 1.0)
        if value is None:
            raise ValueError(f"role {self.kind}: {move!r} is no score from 0 to 1")
        return f"{1 + 9 * value:.12g}" if self.scale == "ten" else move


class CriticRole(RatingRole):
    """Answers yes or no to what it heard, or gives it a score from 0 to 1."""

    kind: str = "critic"
    template_fields: ClassVar[tuple[str, ...]] = (*RatingRole.template_fields, "verdict")
    instructions: TemplateText = "{% extends 'critic.jinja2' %}"
    verdict: Literal["yes_no", "score"] = "yes_no"
    """Form of the verdict: yes or no, or a score from 0 to 1."""

    def move_of(self, answer: str) -> str | None:
        return parsing.choice(answer, ("yes", "no")) if self.verdict == "yes_no" else super().move_of(answer)

    def answer_of(self, move: str) -> str:
        return move if self.verdict == "yes_no" else super().answer_of(move)


class JudgeRole(RatingRole):
    """Prefers one of two candidates, or gives a score from 0 to 1, by a rubric.

    Candidates are the agents that it hears, in the order in which they spoke first. Judges tend to prefer a position;
    two judges, one of them with `swap`, cancel that bias.
    """

    kind: str = "judge"
    template_fields: ClassVar[tuple[str, ...]] = (*RatingRole.template_fields, "mode", "rubric", "ties", "swap")
    instructions: TemplateText = "{% extends 'judge.jinja2' %}"
    prompt: TemplateText = "{% extends 'pair.jinja2' %}"
    mode: Literal["pairwise", "score"] = "pairwise"
    """Compare two candidates, or score one."""
    rubric: str = ""
    """Criteria of a good answer, in words."""
    ties: bool = False
    """Allow the verdict `tie`."""
    swap: bool = False
    """Show the candidates in the opposite order. The move names them in the usual one."""

    def move_of(self, answer: str) -> str | None:
        if self.mode == "score":
            return super().move_of(answer)
        verdict = parsing.choice(answer, ("1", "2", "tie") if self.ties else ("1", "2"))
        return self.answer_of(verdict) if verdict else None

    def answer_of(self, move: str) -> str:
        if self.mode == "score":
            return super().answer_of(move)
        return _SWAPPED.get(move, move) if self.swap else move
