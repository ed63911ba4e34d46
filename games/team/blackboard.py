"""Blackboard of a team: the facts about each agent's turns that expressions and templates can use."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marl.core.errors import EpisodeWithoutOutcomeError
from marl.core.types import Problem
from marl.games.reward_values import validate_reward
from marl.games.team.expressions import ScoreOfUnreadableMove
from marl.games.team.stages import Stage, TeamSeats
from marl.protocols.programs import ProgramAnswer, ProgramCallerResult, parse_program_answer
from marl.protocols.tasks import overall_score
from marl.text.origins import (
    NO_ORIGINS,
    OriginRecordingDict,
    OriginRecordingList,
    Origins,
    TextOrigin,
    TextWithOrigins,
    add_origins_if_unmarked,
)

Facts = dict[str, Any]
"""Facts of one agent: `move` (text), `readable` (0 or 1), `score` (the move as a number; yes is 1), `spoke` (number of
turns), `calls` (number of tool calls), `index`, `posed` (1 if the move poses a problem), one score per check of a
verifier, `of` (the partner in the turn), `before` (the same facts one turn earlier), `failed` of a program (0 or 1),
`reported` of a caller (rewards)."""
_MAX_SCORE = 1e6
"""Largest absolute value of a number that a model wrote, so that no reward overflows."""
_FACTS_OF_MOVE: tuple[str, ...] = ("move", "readable", "score", "posed")
"""Names of the facts that are derived from an agent's own move."""
_SCORES = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
_PROBLEM_FIELDS = {"question": "question", "given": "facts"}
"""Name in expressions -> field of the problem. The names in `ANSWER_NAMES` are fields of the same name."""
ANSWER_NAMES = ("answer", "wrong")
"""Names in expressions that reveal the right answer of the problem: the answer itself, and plausible wrong answers."""


def parse_score(move: str) -> float:
    """Return the fact `score` of a move: its number, clipped to [-1e6, 1e6]; yes is 1, and any other text is 0.

    The score of an empty (unreadable) move is an `ScoreOfUnreadableMove`.
    """
    if not move:
        return ScoreOfUnreadableMove()
    try:
        score = _SCORES[move] if move in _SCORES else float(move)
    except ValueError:
        return 0.0
    return min(max(score, -_MAX_SCORE), _MAX_SCORE) if not math.isnan(score) else 0.0


CALL = "call"
"""Moment after which a reward can be paid, besides stages: the result of a tool call, and its verdict if there is one.
"""


class ProgramReportedRewards(dict[str, float]):
    """Rewards that a program reported for one of the agents that answer its model calls: name -> reward."""

    trial: bool = False
    """True while a workflow is checked before play: every missing reward then counts as reported, with the value 1."""

    def __missing__(self, name: str) -> float:
        if self.trial:
            return 1.0
        raise EpisodeWithoutOutcomeError(f"a rule needs the reward {name!r}, which the program has not reported")


def reported_rewards_all_one_for_checks() -> ProgramReportedRewards:
    """Return rewards in which every name has the value 1, to check a workflow's expressions before play."""
    rewards = ProgramReportedRewards()
    rewards.trial = True
    return rewards


@dataclass(slots=True)
class TurnFacts:
    """Facts of one agent after one of its turns, with the origins of these facts."""

    facts: Facts
    origins: dict[str, Origins] = field(default_factory=dict)
    """Name of a fact -> moves from which the fact was derived; facts that depend on no move are missing."""
    previous_origins: dict[str, Origins] = field(default_factory=dict)
    """Origins of the facts in `before`, the same agent's facts one turn earlier."""

    def facts_for_expression(self, track_origins: bool) -> Facts:
        """Return the facts of the turn; with `track_origins`, their values carry their origins."""
        if not track_origins or not self.origins:
            return self.facts
        # Scores of tool calls have an origin before the agent's first move has one.
        move = add_origins_if_unmarked(self.facts["move"], self.origins.get("move", NO_ORIGINS))
        facts = {**self.facts, "move": move}
        if self.previous_origins:
            facts["before"] = TurnFacts(facts["before"], self.previous_origins).facts_for_expression(track_origins)
        return OriginRecordingDict(facts, self.origins)


class Blackboard:
    """Facts of one episode about every agent, every stage and the current problem."""

    RESERVED: ClassVar[frozenset[str]] = frozenset({*_PROBLEM_FIELDS, *ANSWER_NAMES, CALL, "split", "own", "it"})
    """Names that an expression may use besides those of agents and stages."""

    def __init__(self, seats: TeamSeats) -> None:
        self._seats = seats
        self._initial: dict[str, Facts] = {}
        """Agent -> facts of this agent before its first turn."""
        for agent, role in seats.role_of.items():
            facts: Facts = {"move": "", "readable": 0.0, "score": parse_score(""), "spoke": 0, "calls": 0}
            facts |= {"index": seats.index_of[agent], "posed": 0.0, **dict.fromkeys(seats.checks_of.get(role, ()), 0.0)}
            stages = (stage for stage in seats.stages.values() if stage.role == role and stage.read_or_verified_role)
            facts["of"] = next((seats.read_or_verified_agent(stage, agent) for stage in stages), None)
            if role in seats.caller_roles:
                facts["reported"] = ProgramReportedRewards()
            if role in seats.program_roles:
                facts["failed"] = 0.0
            self._initial[agent] = facts | {"before": facts}

    def reset(self, problem: Problem, split: str = "train") -> None:
        """Delete the facts of all turns, and begin an episode with `problem` of the given `split`."""
        self.split = split
        self.set_problem(problem)
        self.latest = {agent: TurnFacts({**facts}) for agent, facts in self._initial.items()}
        """Agent -> facts after its last turn."""
        self._by_stage: dict[str, dict[str, TurnFacts]] = {label: {} for label in self._seats.stages}

    def set_problem(self, problem: Problem, posing_step: int | None = None) -> None:
        """Set the current problem. `posing_step` is the index of the step that posed it; None: the game dealt it."""
        self.problem = problem
        self.problem_origins = NO_ORIGINS if posing_step is None else frozenset([TextOrigin(posing_step, "posed")])
        """TextOrigin of the problem: the move that posed it, or no origin for a dealt problem."""

    def record_move(self, stage: Stage, agent: str, move: str, step_index: int = 0) -> Facts:
        """Record the move of `agent` in `stage` ("" if unreadable), and return the facts of this turn.

        `step_index` is the index of the game's step with this move.
        """
        previous = self.latest[agent]
        # `before` has the facts of one earlier turn without their own `before`, so that facts do not grow.
        facts = {**self._initial[agent], "before": {**previous.facts, "before": None}}
        facts |= {"spoke": previous.facts["spoke"] + 1, "move": move, "readable": float(bool(move))}
        facts["calls"] = previous.facts["calls"]
        facts |= {"score": parse_score(move), "of": self._seats.read_or_verified_agent(stage, agent)}
        origins = dict.fromkeys(_FACTS_OF_MOVE, frozenset([TextOrigin(step_index, "told")]))
        if "calls" in previous.origins:
            origins["calls"] = previous.origins["calls"]
        self.latest[agent] = self._by_stage[stage.name_in_expressions][agent] = TurnFacts(
            facts, origins, previous.origins
        )
        return facts

    def record_program_answer(self, stage: Stage, program_agent: str, answer_text: str, step_index: int = 0) -> Facts:
        """Record the answer of the program `program_agent`, with its callers' results, and return its facts.

        An unreadable answer sets the fact `failed` to 1.
        """
        answer = parse_program_answer(answer_text) or ProgramAnswer(answer="", failed=True)
        facts = self.record_move(stage, program_agent, answer.answer, step_index)
        facts["failed"] = float(answer.failed)
        for caller in self._seats.program_caller_by_role(stage, program_agent).values():
            result, previous = answer.callers.get(caller) or ProgramCallerResult(), self.latest[caller]
            move = result.move if result.calls else previous.facts["move"]
            facts_of_caller = {**self._initial[caller], "before": {**previous.facts, "before": None}}
            facts_of_caller |= {"spoke": previous.facts["spoke"] + result.calls, "move": move}
            facts_of_caller |= {"readable": float(bool(move)), "score": parse_score(move)}
            facts_of_caller["reported"] = ProgramReportedRewards(previous.facts["reported"] | result.reported)
            origins = dict.fromkeys((*_FACTS_OF_MOVE, "reported"), frozenset([TextOrigin(step_index, "told")]))
            self.latest[caller] = TurnFacts(facts_of_caller, origins, previous.origins)
        return facts

    def record_calls(self, calling_agent: str, call_count: int, step_index: int) -> None:
        """Count `call_count` further tool calls of `calling_agent`, whose results are the game's step `step_index`."""
        latest = self.latest[calling_agent]
        latest.facts["calls"] += call_count
        latest.origins["calls"] = frozenset([TextOrigin(step_index, "told")])

    def record_verdict(
        self, judged_agent: str, verdict: str, check_names: tuple[str, ...], step_index: int = 0
    ) -> None:
        """Record a verifier's scores of the last move of `judged_agent`. An unreadable verdict scores 0 on every check.

        Raises ValueError if a readable verdict lacks a check, or if a score is no finite number.
        """
        try:
            parsed = json.loads(verdict)
        except (ValueError, RecursionError):
            parsed = None
        scores = parsed.get("scores") if isinstance(parsed, dict) else None
        if not isinstance(scores, dict):
            scores = dict.fromkeys(check_names, 0.0)
        latest = self.latest[judged_agent]
        for check in check_names:
            if check not in scores:
                raise ValueError(f"the verdict on {judged_agent} has no check {check!r}; checks: {', '.join(scores)}")
            prefix, score = f"the verdict on {judged_agent}: check {check!r}", scores[check]
            # A list has one score for each segment; expressions read its mean.
            numbers = [validate_reward(number, prefix) for number in (score if isinstance(score, list) else [score])]
            latest.facts[check] = overall_score(numbers)
            latest.origins[check] = frozenset([TextOrigin(step_index, "told")])

    def select_facts(
        self,
        names: Iterable[str],
        own_agent: str | None = None,
        it_agent: str | None = None,
        *,
        track_origins: bool = False,
    ) -> dict[str, Any]:
        """Return name -> facts or value for `names` of an expression; `own` is `own_agent`, and `it` is `it_agent`.

        With `track_origins`, the values carry their origins: the moves (by index of step) from which they were derived.
        """
        values: dict[str, Any] = {}
        for name in names:
            owner = {"own": own_agent, "it": it_agent}.get(name)
            if owner is not None:
                # The stored fact `of` is a partner's name, but expressions get the partner's facts as `of`.
                latest = self.latest[owner]
                partner = self.latest.get(latest.facts["of"])
                facts = {**latest.facts, "of": partner and partner.facts_for_expression(track_origins)}
                values[name] = TurnFacts(facts, latest.origins, latest.previous_origins).facts_for_expression(
                    track_origins
                )
            elif name in self._seats.stages:
                values[name] = self._facts_of_stage_agents(self._seats.stages[name], track_origins)
            elif name in self.latest:
                values[name] = self.latest[name].facts_for_expression(track_origins)
            elif name == "split":
                values[name] = self.split
            else:
                value = getattr(self.problem, _PROBLEM_FIELDS.get(name, name))
                values[name] = (
                    add_origins_if_unmarked(value, self.problem_origins)
                    if track_origins and self.problem_origins
                    else value
                )
        return values

    def _facts_of_stage_agents(self, stage: Stage, track_origins: bool) -> Facts:
        """Return the facts of the only agent of `stage` or, for several agents, fact -> list with a value per agent."""
        recorded = self._by_stage[stage.name_in_expressions]
        turns = [recorded.get(agent) or TurnFacts(self._initial[agent]) for agent in self._seats.stage_agents(stage)]
        views = [turn.facts_for_expression(track_origins) for turn in turns]
        if len(views) == 1:
            return views[0]
        columns: Facts = {}
        for fact in views[0]:
            # `dict.__getitem__` avoids `OriginRecordingDict`, which would record this look-up as a use of the fact.
            column = [dict.__getitem__(view, fact) for view in views]
            origins = [turn.origins.get(fact) or NO_ORIGINS for turn in turns]
            # Texts with origins record their use themselves; columns of other values need an `OriginRecordingList`.
            watched = track_origins and any(origins) and not any(isinstance(value, TextWithOrigins) for value in column)
            columns[fact] = OriginRecordingList(column, origins) if watched else column
        return columns
