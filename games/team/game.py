"""The team game: one stage of a workflow after another, each spoken by its agents at once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from games.base import IllegalMove, TextGame
from games.tasks.base import deal_problem
from games.team.analysis import secrets_in
from games.team.blackboard import Blackboard
from games.team.expressions import evaluate_number, names_in, render, trace
from games.team.stages import Stage, walk
from marl.protocols.tasks import state_of
from marl.provenance import NO_ORIGINS, Marked, Origin, Origins, carry
from marl.types import CALL, Findings, Problem

if TYPE_CHECKING:
    from games.team.settings import TeamConfig


class TeamGame(TextGame):
    """A team that works on a problem. An unreadable answer costs what the settings say, and the episode goes on."""

    name = "team"
    choices = ("split", "index", "problem", "open")

    def __init__(self, config: TeamConfig) -> None:
        self.config, self.team_seats, self.tasks = config, config.team_seats, config.tasks
        self.blackboard = Blackboard(config.team_seats)
        super().__init__(tuple(config.team_seats.role_of), IllegalMove(retry=config.unreadable.retry))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.dealt_problem = self.current_problem = deal_problem(self.name, self.tasks, rng, options)
        self.kept_problems: list[Problem] = []
        self._paid_turns: dict[tuple[str, str, str], int] = {}  # role, reward, payee -> its turns by its last payment
        # A problem that comes as an option was posed in an earlier episode and waited in a pool.
        split = "pool" if "problem" in options else options.get("split", "train")
        self.blackboard.reset(self.current_problem, split)
        self._steps = walk(self.config.stages, self._decide)
        self._posed_at, self._problem_gates = 0, NO_ORIGINS
        self._observations: dict[str, str] = {}
        """Agent -> its observation before the next move."""
        self._audible: dict[str, tuple[tuple[str, ...], Origins]] = {}
        """Agent -> whom it hears before the next move, and what that depends on."""
        first = self._next_stage()
        if first is None:
            raise ValueError("team: no stage is played: every `when` fails at the start")
        return first

    def start_key(self) -> str:
        return self.dealt_problem.key

    def problem(self) -> str:
        return self.current_problem.key

    # --- what an agent is asked ------------------------------------------------------------------------------------

    def together(self, agent: str) -> tuple[str, ...]:
        # All agents of a stage are asked when its first agent is; after that each is asked alone, so that the work of
        # a stage grows with its agents and not with their square.
        return self._speakers if self._stage_begins else (agent,)

    def legal(self, agent: str) -> tuple[str, ...] | None:
        return None if self._call else self.stage.legal

    def hears(self, agent: str) -> tuple[str, ...]:
        if self._call:
            return (self._caller,)
        if agent not in self._audible:
            self._audible[agent] = self._find_audible(agent)
        return self._audible[agent][0]

    def _find_audible(self, agent: str) -> tuple[tuple[str, ...], Origins]:
        """Return whom an agent hears, and what that depends on."""
        speakers, gates = [self.team_seats.partner(self.stage, agent)], NO_ORIGINS
        for name, condition in self.stage.hears.items():
            for each in self.team_seats.named(name):
                heard, looked_at = (True, NO_ORIGINS) if condition == "true" else self._decide(condition, agent, each)
                speakers += [each] * heard
                gates |= looked_at
        if self.stage.tools:
            speakers.append(self.team_seats.toolbox(self.stage, agent))
        return tuple(dict.fromkeys(filter(None, speakers))), gates

    def gates(self, agent: str) -> tuple[int, ...]:
        if self._call:
            return ()
        self.hears(agent)
        origins = self._stage_gates | self._problem_gates | self._audible[agent][1]
        return tuple(sorted({origin.source for origin in origins if isinstance(origin.source, int)}))

    def describe(self, agent: str) -> str:
        if agent not in self._observations:
            self._observations[agent] = self._call or self._render(self.stage.tell, agent, marked=True)
        return self._observations[agent]

    def examples(self, agent: str) -> tuple[str, ...]:
        if self._call or self.stage.legal is not None:
            return ()
        return tuple([self._render(e, agent) for e in self.stage.examples if self._may_show(e)])

    def _may_show(self, example: str) -> bool:
        """Return True in training; what is measured is shown no example that is made from the right answer."""
        if self.blackboard.split != "held_out":
            return True
        answers = {"answer", "wrong"} & names_in(example, template=True)
        return not answers and not secrets_in(example, self.config.secret_facts)

    def state_of(self, agent: str) -> str:
        if self._call:
            return self._call
        if self.stage.verifies:
            answer = self.blackboard.of(self.team_seats.partner(self.stage, agent) or "")["move"]
            return carry(state_of(self.current_problem, answer or None), self.blackboard.posed)
        moves = [f"{speaker}: {self.blackboard.of(speaker)['move']}" for speaker in self.hears(agent)]
        return "\n".join((self.stage.label, self.describe(agent), *moves))

    # --- what follows a move ---------------------------------------------------------------------------------------

    def move(self, action: str) -> str | Mapping[str, float]:
        agent = self.agent_selection
        self._observations, self._audible = {}, {}
        if self._call:
            self._call = ""
            self.blackboard.of(agent)["spoke"] += 1
            return self._caller
        if self.stage.tools and action.startswith(CALL) and self._calls_made < self.stage.calls:
            call = action.removeprefix(CALL)
            self._call = Marked(call, ((0, len(call), Origin(self.steps_taken - 1, "told")),))
            self._caller, self._stage_begins = agent, False
            self._calls_made += 1
            return self.team_seats.toolbox(self.stage, agent)
        self._record(agent, action)
        self._calls_made, self._speakers, self._stage_begins = 0, self._speakers[1:], False
        following = self._speakers[0] if self._speakers else self._next_stage()
        if following is None:
            self._pay_rewards(after=None)
            return {}
        return following

    def _record(self, agent: str, action: str) -> None:
        """Record a move of the current stage, change to the problem that it poses, and pay what it earns at once."""
        stage, partner = self.stage, self.team_seats.partner(self.stage, agent)
        step = self.steps_taken - 1
        facts = self.blackboard.record(stage, agent, action, step)
        if stage.verifies:
            self.blackboard.record_verdict(partner or "", action, stage.scores, step)
        if stage.poses:
            posed = self.tasks.posed(action) if action else None
            facts["posed"] = float(posed is not None)
            self._posed_at, self._problem_gates = step, NO_ORIGINS
            self._work_on(posed)
        self._pay_rewards(stage.label, agent, partner)

    def _next_stage(self) -> str | None:
        """Go on to the next stage, deciding about posed problems, and return its first agent; None at the end."""
        for step, gates in self._steps:
            if isinstance(step, Stage):
                self.stage, self._speakers, self._stage_gates = step, self.team_seats.speakers(step), gates
                self._caller, self._call, self._calls_made, self._stage_begins = "", "", 0, True
                return self._speakers[0]
            if self.current_problem is not self.dealt_problem:
                keeps, looked_at = self._decide(step.keep)
                self._problem_gates |= looked_at
                if keeps:
                    self.kept_problems.append(self.current_problem)
                else:
                    self._work_on(None)
        return None

    def _work_on(self, posed: Problem | None) -> None:
        """Go on with the problem that was posed last; None: it is none, or is not kept, so with the one dealt."""
        self.current_problem = posed or self.dealt_problem
        self.blackboard.work_on(self.current_problem, self._posed_at if posed else None)
        if not posed:
            self._problem_gates |= {Origin(self._posed_at, "posed")}

    def _pay_rewards(self, after: str | None, agent: str = "", partner: str | None = None) -> None:
        """Pay the rewards that are due after a stage (None: at the end), where `agent` spoke about `partner`.

        An agent that has not spoken yet has earned nothing, so it is neither paid nor charged; one that is spoken about
        again without having said anything since earns nothing anew.
        """
        for role, payments in self.config.rewards.items():
            agents = self.team_seats.agents_of[role]
            payees = tuple(each for each in (agent, partner) if each in agents) or agents
            due = [(name, payment.value) for name, payment in payments.items() if payment.after == after]
            for (name, value), payee in product(due, payees):
                spoke, paid = self.blackboard.of(payee)["spoke"], self._paid_turns.get((role, name, payee), 0)
                if spoke > (paid if payee == partner else 0):
                    self._paid_turns[role, name, payee] = spoke
                    self.pay({payee: self._number(f"rewards.{role}.{name}", value, payee)}, name, value)

    def findings(self) -> Findings:
        measures = {name: self._number(f"measures.{name}", source) for name, source in self.config.measures.items()}
        return Findings(measures, tuple({"problem": asdict(problem)} for problem in self.kept_problems))

    def _number(self, field: str, source: str, agent: str | None = None) -> float:
        try:
            return evaluate_number(source, self._facts(source, agent))
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from error

    def _facts(self, source: str, agent: str | None = None, speaker: str | None = None) -> Any:
        return self.blackboard.facts(names_in(source), agent, speaker)

    def _decide(self, condition: str, agent: str | None = None, speaker: str | None = None) -> tuple[bool, Origins]:
        """Return whether a condition holds, and what that depends on."""
        facts = self.blackboard.facts(names_in(condition), agent, speaker, marked=True)
        value, origins = trace(condition, facts)
        return bool(value), origins

    def _render(self, template: str, agent: str, *, marked: bool = False) -> str:
        """Return a template with the facts filled in; `marked`: as a text that knows which moves are in it."""
        text = render(template, self.blackboard.facts(names_in(template, template=True), agent, marked=marked))
        return Marked(text) if marked and not isinstance(text, Marked) else text

    def _refuse(self, agent: str) -> str | None:
        if self._attempt < self.illegal.retry:
            return super()._refuse(agent)
        if penalty := self.config.unreadable.penalty:
            self.pay({agent: -penalty}, "unreadable", "unreadable answer")
        return ""
