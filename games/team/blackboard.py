"""Blackboard of a team: the facts about each agent's turns that expressions and templates can use."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from games.base import finite
from games.team.expressions import Unscored
from games.team.stages import Stage, TeamSeats
from marl.provenance import NO_ORIGINS, Marked, Origin, Origins, WatchedDict, WatchedList, mark
from marl.types import Problem

Facts = dict[str, Any]
"""Facts of one agent: `move` (text), `readable` (0 or 1), `score` (its move as a number; yes is 1), `spoke` (number of
turns), `index`, `posed` (1 if its move poses a problem), each check that verifies it, `of` (the agent that its turn is
about), `before` (the same facts one turn earlier)."""
_MAX_SCORE = 1e6
"""Bound on numbers that a model writes, so that none overflows a reward."""
_SPOKEN_FACTS: tuple[str, ...] = ("move", "readable", "score", "posed")
"""Facts that are made from an agent's own move."""
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


@dataclass(slots=True)
class _TurnFacts:
    """The facts of an agent after one of its turns, and what they were made from."""

    facts: Facts
    origins: dict[str, Origins] = field(default_factory=dict)
    """Fact -> the moves of the game, by the number of their step, that it was made from; unless there are none."""
    earlier: dict[str, Origins] = field(default_factory=dict)
    """The same of the facts one turn earlier."""

    def marked(self) -> Facts:
        """Return the facts, marked with what they were made from."""
        if not self.origins:
            return self.facts
        facts = {**self.facts, "move": mark(self.facts["move"], self.origins["move"])}
        if self.earlier:
            facts["before"] = _TurnFacts(facts["before"], self.earlier).marked()
        return WatchedDict(facts, self.origins)


class Blackboard:
    """The facts of one episode."""

    RESERVED: ClassVar[frozenset[str]] = frozenset({*_PROBLEM_FIELDS, *_ANSWER_FIELDS, "split", "own", "it"})
    """Names in expressions that stand for no fixed agent."""

    def __init__(self, seats: TeamSeats) -> None:
        self._seats = seats
        self._initial = {agent: self._initial_facts(agent) for agent in seats.role_of}

    def reset(self, problem: Problem, split: str = "train") -> None:
        """Forget all turns, for a new problem."""
        self.split = split
        self.work_on(problem)
        self._latest: dict[str, _TurnFacts] = {agent: _TurnFacts({**facts}) for agent, facts in self._initial.items()}
        self._by_stage: dict[str, dict[str, _TurnFacts]] = {label: {} for label in self._seats.stages}

    def work_on(self, problem: Problem, posed_at: int | None = None) -> None:
        """Change the problem; `posed_at`: the step of the game that posed it."""
        self.problem = problem
        self.posed = NO_ORIGINS if posed_at is None else frozenset([Origin(posed_at, "posed")])
        """The move that posed the problem, if one did."""

    def of(self, agent: str) -> Facts:
        """Return the facts of an agent's last turn."""
        return self._latest[agent].facts

    def record(self, stage: Stage, agent: str, move: str, step: int = 0) -> Facts:
        """Record and return the facts of a move in a stage; `move` is "" if it could not be read.

        `step`: the number of the game's step that plays it.
        """
        before = self._latest[agent]
        facts = {**self._initial[agent], "before": {**before.facts, "before": None}}
        facts |= {"spoke": before.facts["spoke"] + 1, "move": move, "readable": float(bool(move))}
        facts |= {"score": score_of(move), "of": self._seats.partner(stage, agent)}
        origins = dict.fromkeys(_SPOKEN_FACTS, frozenset([Origin(step, "told")]))
        self._latest[agent] = self._by_stage[stage.label][agent] = _TurnFacts(facts, origins, before.origins)
        return facts

    def record_verdict(self, agent: str, verdict: str, checks: tuple[str, ...], step: int = 0) -> None:
        """Record the scores of an agent's last move. An unreadable verdict scores 0 on every check.

        Raises ValueError if a readable verdict lacks one of the checks, or its score is no finite number.
        """
        scores, latest = _parse_scores(verdict), self._latest[agent]
        if scores is None:
            scores = dict.fromkeys(checks, 0.0)
        for check in checks:
            if check not in scores:
                raise ValueError(f"the verdict on {agent} has no check {check!r}; checks: {', '.join(scores)}")
            latest.facts[check] = finite(scores[check], f"the verdict on {agent}: check {check!r}")
            latest.origins[check] = frozenset([Origin(step, "told")])

    def names(self, *, with_answer: bool = True) -> frozenset[str]:
        """Return all names that an expression may use; without the answer, none that gives it away."""
        known = self.RESERVED if with_answer else self.RESERVED - _ANSWER_FIELDS.keys()
        return known | self._seats.stages.keys() | self._seats.role_of.keys()

    def agents(self) -> frozenset[str]:
        """Return all names that stand for an agent in an expression, or for those of a role or a stage."""
        return frozenset({*self._seats.stages, *self._seats.role_of, "own", "it"})

    def facts(
        self, names: Iterable[str], agent: str | None = None, speaker: str | None = None, *, marked: bool = False
    ) -> dict[str, Any]:
        """Return the facts with these names; `own` stands for `agent`, and `it` for `speaker`.

        `marked`: with marks of the moves, by the number of their step, that each was made from.
        """
        agents = {"own": agent, "it": speaker}
        return {name: self._fact(name, agents.get(name), marked) for name in names}

    def _fact(self, name: str, agent: str | None, marked: bool) -> Any:
        if agent is not None:
            return self._with_partner(agent, marked)
        if name in self._seats.stages:
            return self._stage_facts(self._seats.stages[name], marked)
        if name in self._latest:
            return _shown(self._latest[name], marked)
        if name == "split":
            return self.split
        value = getattr(self.problem, (_PROBLEM_FIELDS | _ANSWER_FIELDS)[name])
        return mark(value, self.posed) if marked and self.posed else value

    def _with_partner(self, agent: str, marked: bool) -> Facts:
        latest = self._latest[agent]
        partner = self._latest.get(latest.facts["of"])
        with_partner = {**latest.facts, "of": partner and _shown(partner, marked)}
        return _shown(_TurnFacts(with_partner, latest.origins, latest.earlier), marked)

    def _stage_facts(self, stage: Stage, marked: bool) -> Facts:
        """Return the facts of a stage: those of its one agent, or for several agents a list of each fact."""
        recorded, agents = self._by_stage[stage.label], self._seats.speakers(stage)
        rows = [recorded.get(agent) or _TurnFacts(self._initial[agent]) for agent in agents]
        if len(rows) == 1:
            return _shown(rows[0], marked)
        shown = [_shown(row, marked) for row in rows]
        columns = {key: [dict.__getitem__(facts, key) for facts in shown] for key in shown[0]}
        if not marked:
            return columns
        return {key: _watched(column, [row.origins.get(key) for row in rows]) for key, column in columns.items()}

    def _initial_facts(self, agent: str) -> Facts:
        seats, role = self._seats, self._seats.role_of[agent]
        facts: Facts = {"move": "", "readable": 0.0, "score": score_of(""), "spoke": 0}
        facts |= {"index": seats.index_of[agent], "posed": 0.0, **dict.fromkeys(seats.checks_of.get(role, ()), 0.0)}
        stages = (stage for stage in seats.stages.values() if stage.role == role and stage.partner)
        facts["of"] = next((seats.partner(stage, agent) for stage in stages), None)
        return facts | {"before": facts}


def _shown(latest: _TurnFacts, marked: bool) -> Facts:
    return latest.marked() if marked else latest.facts


def _watched(column: list[Any], origins: Sequence[Origins | None]) -> list[Any]:
    """Return a fact of several agents, which is noted when it is looked at if its values cannot be marked."""
    if not any(origins) or any(isinstance(value, Marked) for value in column):
        return column
    return WatchedList(column, [each or NO_ORIGINS for each in origins])


def _parse_scores(verdict: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(verdict)
    except (ValueError, RecursionError):
        return None
    scores = parsed.get("scores") if isinstance(parsed, dict) else None
    return scores if isinstance(scores, dict) else None
