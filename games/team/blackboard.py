"""Blackboard of a team: the facts about each agent's turns, for expressions and templates."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marl.core.types import Problem
from marl.games.base import finite
from marl.games.team.expressions import UnreadableScore
from marl.games.team.stages import Stage, TeamSeats
from marl.text.origins import NO_ORIGINS, MarkedText, Origin, Origins, WatchedDict, WatchedList, with_origins

Facts = dict[str, Any]
"""Facts of one agent: `move` (text), `readable` (0 or 1), `score` (the move as a number; yes is 1), `spoke` (number of
turns), `index`, `posed` (1 if the move poses a problem), every check of a verifier, `of` (the agent discussed in the
turn), `before` (the same facts one turn earlier)."""
_MAX_SCORE = 1e6
"""Bound on numbers written by a model, so that no reward overflows."""
_FACTS_OF_MOVE: tuple[str, ...] = ("move", "readable", "score", "posed")
"""Facts derived from an agent's own move."""
_SCORES = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
_PROBLEM_FIELDS = {"question": "question", "given": "facts"}
_ANSWER_FIELDS = {"answer": "answer", "wrong": "wrong"}


def score_of(move: str) -> float:
    """Return a move as a number in [-1e6, 1e6]: yes is 1, and text other than a number is 0.

    The score of an empty (unreadable) move is `UnreadableScore`.
    """
    if not move:
        return UnreadableScore()
    try:
        score = _SCORES[move] if move in _SCORES else float(move)
    except ValueError:
        return 0.0
    return min(max(score, -_MAX_SCORE), _MAX_SCORE) if not math.isnan(score) else 0.0


@dataclass(slots=True)
class _TurnFacts:
    """The facts of an agent after one of its turns, with their origins."""

    facts: Facts
    origins: dict[str, Origins] = field(default_factory=dict)
    """Fact -> origins, for facts derived from moves."""
    previous_origins: dict[str, Origins] = field(default_factory=dict)
    """Origins of the facts in `before`."""

    def view(self, marked: bool) -> Facts:
        """Return the facts, with `marked` as values that carry their origins."""
        if not marked or not self.origins:
            return self.facts
        facts = {**self.facts, "move": with_origins(self.facts["move"], self.origins["move"])}
        if self.previous_origins:
            facts["before"] = _TurnFacts(facts["before"], self.previous_origins).view(marked)
        return WatchedDict(facts, self.origins)


class Blackboard:
    """The facts of one episode."""

    RESERVED: ClassVar[frozenset[str]] = frozenset({*_PROBLEM_FIELDS, *_ANSWER_FIELDS, "split", "own", "it"})
    """Names in expressions without a fixed agent."""

    def __init__(self, seats: TeamSeats) -> None:
        self._seats = seats
        self._initial: dict[str, Facts] = {}
        """Agent -> its facts before its first turn."""
        for agent, role in seats.role_of.items():
            facts: Facts = {"move": "", "readable": 0.0, "score": score_of(""), "spoke": 0}
            facts |= {"index": seats.index_of[agent], "posed": 0.0, **dict.fromkeys(seats.checks_of.get(role, ()), 0.0)}
            stages = (stage for stage in seats.stages.values() if stage.role == role and stage.partner_role)
            facts["of"] = next((seats.partner(stage, agent) for stage in stages), None)
            self._initial[agent] = facts | {"before": facts}

    def reset(self, problem: Problem, split: str = "train") -> None:
        """Clear the facts of all turns and start with a new problem."""
        self.split = split
        self.set_problem(problem)
        self._latest: dict[str, _TurnFacts] = {agent: _TurnFacts({**facts}) for agent, facts in self._initial.items()}
        self._by_stage: dict[str, dict[str, _TurnFacts]] = {label: {} for label in self._seats.stages}

    def set_problem(self, problem: Problem, posed_at: int | None = None) -> None:
        """Change the problem; `posed_at` is the index of the game's step with the posing move, None for a dealt one."""
        self.problem = problem
        self.problem_origins = NO_ORIGINS if posed_at is None else frozenset([Origin(posed_at, "posed")])
        """The move that posed the problem; empty for a dealt problem."""

    def latest_facts(self, agent: str) -> Facts:
        """Return the facts of the agent's last turn."""
        return self._latest[agent].facts

    def record(self, stage: Stage, agent: str, move: str, step: int = 0) -> Facts:
        """Record and return the facts of a move in a stage; an unreadable move is "".

        `step` is the index of the game's step with this move.
        """
        previous = self._latest[agent]
        # Only one earlier turn is stored, so facts do not grow with the episode.
        facts = {**self._initial[agent], "before": {**previous.facts, "before": None}}
        facts |= {"spoke": previous.facts["spoke"] + 1, "move": move, "readable": float(bool(move))}
        facts |= {"score": score_of(move), "of": self._seats.partner(stage, agent)}
        origins = dict.fromkeys(_FACTS_OF_MOVE, frozenset([Origin(step, "told")]))
        self._latest[agent] = self._by_stage[stage.label][agent] = _TurnFacts(facts, origins, previous.origins)
        return facts

    def record_verdict(self, agent: str, verdict: str, checks: tuple[str, ...], step: int = 0) -> None:
        """Record the scores of an agent's last move. An unreadable verdict scores 0 on every check.

        Raises ValueError if a readable verdict lacks a check, or if a score is no finite number.
        """
        try:
            parsed = json.loads(verdict)
        except (ValueError, RecursionError):
            parsed = None
        scores = parsed.get("scores") if isinstance(parsed, dict) else None
        if not isinstance(scores, dict):
            scores = dict.fromkeys(checks, 0.0)
        latest = self._latest[agent]
        for check in checks:
            if check not in scores:
                raise ValueError(f"the verdict on {agent} has no check {check!r}; checks: {', '.join(scores)}")
            latest.facts[check] = finite(scores[check], f"the verdict on {agent}: check {check!r}")
            latest.origins[check] = frozenset([Origin(step, "told")])

    def names(self, *, with_answer: bool = True) -> frozenset[str]:
        """Return all names available to an expression; without `with_answer`, names that reveal it are left out."""
        reserved = self.RESERVED if with_answer else self.RESERVED - _ANSWER_FIELDS.keys()
        return reserved | self._seats.stages.keys() | self._seats.role_of.keys()

    def agents(self) -> frozenset[str]:
        """Return all names that stand for an agent, or for the agents of a stage, in an expression."""
        return frozenset({*self._seats.stages, *self._seats.role_of, "own", "it"})

    def select_facts(
        self, names: Iterable[str], agent: str | None = None, speaker: str | None = None, *, marked: bool = False
    ) -> dict[str, Any]:
        """Return the values of `names`; `own` stands for `agent`, and `it` for `speaker`.

        With `marked`, the values carry their origins: the moves (by index of step) from which they were derived.
        """
        agents = {"own": agent, "it": speaker}
        return {name: self._value(name, agents.get(name), marked) for name in names}

    def _value(self, name: str, agent: str | None, marked: bool) -> Any:
        """Return the value of a name; `agent` is the agent behind `own` or `it`, else None."""
        if agent is not None:
            # `own.of` and `it.of` are the partner's facts rather than the partner's name.
            latest = self._latest[agent]
            partner = self._latest.get(latest.facts["of"])
            facts = {**latest.facts, "of": partner and partner.view(marked)}
            return _TurnFacts(facts, latest.origins, latest.previous_origins).view(marked)
        if name in self._seats.stages:
            return self._stage_facts(self._seats.stages[name], marked)
        if name in self._latest:
            return self._latest[name].view(marked)
        if name == "split":
            return self.split
        value = getattr(self.problem, (_PROBLEM_FIELDS | _ANSWER_FIELDS)[name])
        return with_origins(value, self.problem_origins) if marked and self.problem_origins else value

    def _stage_facts(self, stage: Stage, marked: bool) -> Facts:
        """Return the facts of a stage: of its single agent, or for several agents a list per fact."""
        recorded = self._by_stage[stage.label]
        rows = [recorded.get(agent) or _TurnFacts(self._initial[agent]) for agent in self._seats.speakers(stage)]
        views = [row.view(marked) for row in rows]
        if len(rows) == 1:
            return views[0]
        columns: Facts = {}
        for fact in views[0]:
            # `dict.__getitem__`, as a look-up in a `WatchedDict` would count as a look at the fact.
            column = [dict.__getitem__(view, fact) for view in views]
            origins = [row.origins.get(fact) or NO_ORIGINS for row in rows]
            # Texts carry their own marks; for other values the list notes a look at them.
            watched = marked and any(origins) and not any(isinstance(value, MarkedText) for value in column)
            columns[fact] = WatchedList(column, origins) if watched else column
        return columns
