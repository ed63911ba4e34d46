"""Ratings of courses by what is known at test time: the verdicts of a seat that verifies, criticises or rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marl.config import nearest
from marl.graph import Trajectory
from marl.text import read_json
from marl.types import Turn

RETURNS = "returns"
"""Rating by what the game pays."""
_WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


@dataclass(frozen=True, slots=True)
class CourseRating:
    """Rating of courses by one role's verdicts, or by what the game paid."""

    by: str
    """`returns`, `ROLE.score` or `ROLE.CHECK`."""
    verdicts: Literal["last", "mean", "least"] = "last"
    """Verdicts of the role that count: the last one of each of its agents, or the mean or the least of all."""

    @property
    def role(self) -> str:
        """Return the role that rates; "" if the game does."""
        return self.by.rpartition(".")[0]

    @property
    def score(self) -> str:
        """Return the name of the score: `score`, or that of a check."""
        return self.by.rpartition(".")[2]

    def of_course(self, course: Trajectory) -> float | None:
        """Return the rating of a whole course; None if its verdict cannot be read, or there is none."""
        return sum(course.returns.values()) if self.by == RETURNS else self.of_turns(course.turns)

    def of_turns(self, turns: Iterable[Turn]) -> float | None:
        """Return the rating by the verdicts that the role gave in these turns; None if none of them can be read.

        Raises:
            ValueError: if the role gives no score of this name.
        """
        counted = [turn for turn in turns if self.role and turn.role == self.role]
        if self.verdicts == "last":
            counted = list({turn.agent: turn for turn in counted}.values())
        scores = [score for turn in counted if (score := self._score_of(turn)) is not None]
        if not scores:
            return None
        return min(scores) if self.verdicts == "least" else math.fsum(scores) / len(scores)

    def _score_of(self, turn: Turn) -> float | None:
        scores = _scores_in(turn.action or "")
        if scores is None:
            if self.score != "score":
                raise ValueError(f"by: {self.by!r}: {self.role!r} gives no named scores; choose {self.role}.score")
            return _number(turn.action or "")
        if self.score not in scores:
            raise ValueError(f"by: {self.by!r}: {self.role!r} gives no such score; {nearest(self.score, scores)}")
        return _finite(float(scores[self.score]))


def _scores_in(move: str) -> Mapping[str, Any] | None:
    """Return the scores of `{"scores": {name: number}, ...}`; None if a move is something else."""
    if not move.startswith("{"):
        return None
    try:
        verdict = read_json(move)
    except ValueError:
        return None
    scores = verdict.get("scores") if isinstance(verdict, dict) else None
    readable = isinstance(scores, dict) and all(type(score) in (int, float) for score in scores.values())
    return scores if readable else None


def _number(move: str) -> float | None:
    """Return a move as a number, yes as 1 and no as 0; None if it is neither."""
    if move in _WORDS:
        return _WORDS[move]
    try:
        return _finite(float(move))
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
