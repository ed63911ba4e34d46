"""Ratings of rollouts by information available at test time: verdicts of a verifier, critic or reward model seat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.host.outside import parse_json

RETURNS = "returns"
"""Rating by the game's rewards, for training only."""
_WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


@dataclass(frozen=True, slots=True)
class RolloutRating:
    """Rating of rollouts by the verdicts of a role, or by the game's rewards."""

    by: str
    """`returns`, `ROLE.score` or `ROLE.CHECK`."""
    verdicts: Literal["last", "mean", "least"] = "last"
    """Aggregation of the role's verdicts: the mean over the last verdict of each agent, or mean or minimum of all."""

    @property
    def role(self) -> str:
        """Return the rating role, or "" for a rating by the game."""
        return self.by.rpartition(".")[0]

    @property
    def score(self) -> str:
        """Return the name of the score: `score`, or the name of a check."""
        return self.by.rpartition(".")[2]

    def rate(self, rollout: Trajectory) -> float | None:
        """Return the rating of a finished rollout, or None without a readable verdict."""
        return sum(rollout.returns.values()) if self.by == RETURNS else self.of_turns(rollout.turns)

    def of_turns(self, turns: Iterable[Turn]) -> float | None:
        """Return the rating by the role's verdicts among `turns`, or None if none is readable.

        Raises:
            ValueError: if the role gives no score of this name.
        """
        counted = [turn for turn in turns if self.role and turn.role == self.role]
        if self.verdicts == "last":
            counted = list({turn.agent: turn for turn in counted}.values())
        scores: list[float] = []
        for turn in counted:
            score = self._score_of(turn)
            if score is not None:
                scores.append(score)
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
            raise ValueError(f"by: {self.by!r}: {self.role!r} gives no such score; {choices_hint(self.score, scores)}")
        return _finite(float(scores[self.score]))


def _scores_in(move: str) -> Mapping[str, Any] | None:
    """Return the scores of a move of the form `{"scores": {name: number}, ...}`, or None for any other move."""
    if not move.startswith("{"):
        return None
    try:
        verdict = parse_json(move)
    except ValueError:
        return None
    scores = verdict.get("scores") if isinstance(verdict, dict) else None
    # By exact type: bool is a subclass of int, and no score.
    readable = isinstance(scores, dict) and all(type(score) in (int, float) for score in scores.values())
    return scores if readable else None


def _number(move: str) -> float | None:
    """Return a move as a number (yes: 1, no: 0), or None if it is neither."""
    if move in _WORDS:
        return _WORDS[move]
    try:
        return _finite(float(move))
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
