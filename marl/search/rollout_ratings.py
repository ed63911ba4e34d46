"""Ratings of rollouts by information available at test time: verdicts of a verifier, critic or reward model seat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.types import Turn
from marl.host.untrusted_text import parse_json
from marl.protocols.tasks import overall_score

RETURNS = "returns"
"""Rating by the game's rewards, for training only."""
_WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
"""Verdict in words -> its score."""


@dataclass(frozen=True, slots=True)
class RolloutRater:
    """Rater of rollouts, by the verdicts of a role or by the game's rewards."""

    by: str
    """Rating of a rollout: `returns` (sum of the returns), `ROLE.score` (score that a role gives), or `ROLE.CHECK`
    (result of a check in the role's verdict)."""
    verdicts: Literal["last", "mean", "least"] = "last"
    """Aggregation of the role's verdicts: the mean over the last verdict of each agent, or mean or minimum of all."""

    @property
    def rating_role(self) -> str:
        """Role whose verdicts are the ratings, or "" for a rating by the game's rewards."""
        return self.by.rpartition(".")[0]

    @property
    def score_name(self) -> str:
        """Name of the score in a verdict: `score`, or the name of a check."""
        return self.by.rpartition(".")[2]

    def rate_rollout(self, rollout: Trajectory) -> float | None:
        """Return the rating of a finished rollout, or None without a readable verdict."""
        return sum(rollout.returns.values()) if self.by == RETURNS else self.rate_turns(rollout.turns)

    def rate_turns(self, turns: Iterable[Turn]) -> float | None:
        """Return the rating from the verdicts among `turns`, or None without a readable verdict.

        Raises:
            ValueError: if the role gives no score of this name.
        """
        counted: dict[object, Turn] = {}
        for turn in turns:
            if self.rating_role and turn.role == self.rating_role:
                # `verdicts: last` counts one verdict per agent, since a later one overwrites the earlier ones.
                counted[turn.agent if self.verdicts == "last" else turn.id] = turn
        scores: list[float] = []
        for turn in counted.values():
            score = self._score_in_verdict(turn.action or "")
            if score is not None:
                scores.append(score)
        if not scores:
            return None
        return min(scores) if self.verdicts == "least" else math.fsum(scores) / len(scores)

    def _score_in_verdict(self, verdict: str) -> float | None:
        """Return the score in a verdict: one of its named scores, a number, or 1 for yes and 0 for no.

        An unreadable verdict has the score None.
        """
        scores: Mapping[str, Any] | None = None
        role = self.rating_role
        with suppress(ValueError):
            match parse_json(verdict) if verdict.startswith("{") else None:
                # A bool is no score, but an instance of int; so types are compared exactly.
                case {"scores": dict(named)} if {int, float}.issuperset(map(type, _numbers(named.values()))):
                    scores = named
        if scores is None:
            if self.score_name != "score":
                raise ValueError(f"by: {self.by!r}: {role!r} gives no named scores; choose {role}.score")
            try:
                score = _WORDS[verdict] if verdict in _WORDS else float(verdict)
            except ValueError:
                return None
        elif self.score_name in scores:
            score = float(overall_score(scores[self.score_name]))
        else:
            raise ValueError(f"by: {self.by!r}: {role!r} gives no such score; {choices_hint(self.score_name, scores)}")
        return score if math.isfinite(score) else None


def _numbers(scores: Iterable[Any]) -> Iterator[Any]:
    """Yield each of `scores`, and each item of a score that is a list, one for each segment."""
    for score in scores:
        yield from score if isinstance(score, list) else (score,)
