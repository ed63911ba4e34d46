"""Blackboard of a team: the facts about each agent's turns that expressions and templates can use."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, ClassVar

from games.base import finite
from games.team.expressions import Unscored
from games.team.stages import Stage, TeamSeats
from marl.types import Problem

Facts = dict[str, Any]
"""Facts of one agent: `move` (text), `readable` (0 or 1), `score` (its move as a number; yes is 1), `spoke` (number of
turns), `index`, `posed` (1 if its move poses a problem), each check that verifies it, `of` (the agent that its turn is
about), `before` (the same facts one turn earlier)."""
_MAX_SCORE = 1e6
"""Bound on numbers that a model writes, so that none overflows a reward."""
_SCORES = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
_PROBLEM_FIELDS = {"question": "question", "given": "facts"}
_ANSWER_FIELDS = {"answer": "answer", "wrong": "wrong"}


def score_of(move: str) -> float:
    """Return a move as a number within [-1e6, 1e6]: yes is 1, and text that is not a number is 0.

    The score of an empty move, which could not be read, is `Unscored`.
    """
    if not move:
        return Unscored()
    try:
        score = _SCORES[move] if move in _SCORES else float(move)
    except ValueError:
        return 0.0
    return min(max(score, -_MAX_SCORE), _MAX_SCORE) if not math.isnan(score) else 0.0


class Blackboard:
    """The facts of one episode."""

    RESERVED: ClassVar[frozenset[str]] = frozenset({*_PROBLEM_FIELDS, *_ANSWER_FIELDS, "split", "own", "it"})
    """Names in expressions that stand for no fixed agent."""

    def __init__(self, seats: TeamSeats) -> None:
        self._seats = seats
        self._initial = {agent: self._initial_facts(agent) for agent in seats.role_of}

    def reset(self, problem: Problem, split: str = "train") -> None:
        """Forget all turns, for a new problem."""
        self.problem, self.split = problem, split
        self._latest: dict[str, Facts] = {agent: {**facts} for agent, facts in self._initial.items()}
        self._by_stage: dict[str, dict[str, Facts]] = {label: {} for label in self._seats.stages}

    def of(self, agent: str) -> Facts:
        """Return the facts of an agent's last turn."""
        return self._latest[agent]

    def record(self, stage: Stage, agent: str, move: str) -> Facts:
        """Record and return the facts of a move in a stage; `move` is "" if it could not be read."""
        before = self._latest[agent]
        facts = {**self._initial[agent], "before": {**before, "before": None}, "spoke": before["spoke"] + 1}
        facts |= {"move": move, "readable": float(bool(move)), "score": score_of(move)}
        facts["of"] = self._seats.partner(stage, agent)
        self._latest[agent] = self._by_stage[stage.label][agent] = facts
        return facts

    def record_verdict(self, agent: str, verdict: str, checks: tuple[str, ...]) -> None:
        """Record the scores of an agent's last move. An unreadable verdict scores 0 on every check.

        Raises ValueError if a readable verdict lacks one of the checks, or its score is no finite number.
        """
        scores = _parse_scores(verdict)
        if scores is None:
            scores = dict.fromkeys(checks, 0.0)
        for check in checks:
            if check not in scores:
                raise ValueError(f"the verdict on {agent} has no check {check!r}; checks: {', '.join(scores)}")
            self._latest[agent][check] = finite(scores[check], f"the verdict on {agent}: check {check!r}")

    def names(self, *, with_answer: bool = True) -> frozenset[str]:
        """Return all names that an expression may use; without the answer, none that gives it away."""
        known = self.RESERVED if with_answer else self.RESERVED - _ANSWER_FIELDS.keys()
        return known | self._seats.stages.keys() | self._seats.role_of.keys()

    def agents(self) -> frozenset[str]:
        """Return all names that stand for an agent in an expression, or for those of a role or a stage."""
        return frozenset({*self._seats.stages, *self._seats.role_of, "own", "it"})

    def facts(self, names: Iterable[str], agent: str | None = None, speaker: str | None = None) -> dict[str, Any]:
        """Return the facts with these names; `own` stands for `agent`, and `it` for `speaker`."""
        agents = {"own": agent, "it": speaker}
        return {name: self._fact(name, agents.get(name)) for name in names}

    def _fact(self, name: str, agent: str | None) -> Any:
        if agent is not None:
            facts = self._latest[agent]
            return {**facts, "of": self._latest.get(facts["of"])}
        if name in self._seats.stages:
            return self._stage_facts(self._seats.stages[name])
        if name in self._latest:
            return self._latest[name]
        return self.split if name == "split" else getattr(self.problem, (_PROBLEM_FIELDS | _ANSWER_FIELDS)[name])

    def _stage_facts(self, stage: Stage) -> Facts:
        """Return the facts of a stage: those of its one agent, or for several agents a list of each fact."""
        recorded, agents = self._by_stage[stage.label], self._seats.speakers(stage)
        rows = [recorded.get(agent) or self._initial[agent] for agent in agents]
        return rows[0] if len(rows) == 1 else {key: [facts[key] for facts in rows] for key in rows[0]}

    def _initial_facts(self, agent: str) -> Facts:
        seats, role = self._seats, self._seats.role_of[agent]
        facts: Facts = {"move": "", "readable": 0.0, "score": score_of(""), "spoke": 0}
        facts |= {"index": seats.index_of[agent], "posed": 0.0, **dict.fromkeys(seats.checks_of.get(role, ()), 0.0)}
        stages = (stage for stage in seats.stages.values() if stage.role == role and stage.partner)
        facts["of"] = next((seats.partner(stage, agent) for stage in stages), None)
        return facts | {"before": facts}


def _parse_scores(verdict: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(verdict)
    except (ValueError, RecursionError):
        return None
    scores = parsed.get("scores") if isinstance(parsed, dict) else None
    return scores if isinstance(scores, dict) else None
