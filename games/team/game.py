"""The team game: the stages of a workflow in order, with all agents of a stage asked at once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from typing import Any

from marl.core.types import TOOL_CALL_PREFIX, Findings, Problem
from marl.games.base import IllegalMoveHandling, TextGame
from marl.games.tasks.base import deal_problem
from marl.games.team.blackboard import Blackboard
from marl.games.team.expressions import evaluate_number, evaluate_with_origins, names_in, render
from marl.games.team.stages import Stage, iter_played_steps
from marl.games.team.static_analysis import secret_facts_in
from marl.games.team.workflow import Workflow
from marl.protocols.tasks import encode_verifier_state
from marl.text.origins import NO_ORIGINS, MarkedText, Origin, Origins, add_origins


class TeamGame(TextGame):
    """A team at work on a problem. An unreadable answer counts as an empty move, and the episode goes on."""

    name = "team"
    reset_options = ("split", "index", "problem", "open")

    def __init__(self, config: Workflow) -> None:
        self.config, self.team_seats, self.tasks = config, config.team_seats, config.tasks
        self.blackboard = Blackboard(config.team_seats)
        super().__init__(tuple(config.team_seats.role_of), IllegalMoveHandling(retry=config.unreadable.retry))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.dealt_problem = self.current_problem = deal_problem(self.name, self.tasks, rng, options)
        self.kept_problems: list[Problem] = []
        self._paid_turns: dict[tuple[str, str, str], int] = {}
        """(role, reward component, payee) -> number of the payee's turns at its last payment."""
        # A problem passed as an option was posed in an earlier episode and comes from a pool.
        split = "pool" if "problem" in options else options.get("split", "train")
        self.blackboard.reset(self.current_problem, split)
        self._steps = iter_played_steps(self.config.stages, self._decide)
        self._posed_at, self._problem_gates = 0, NO_ORIGINS
        self._observations: dict[str, str] = {}
        """Agent -> its observation before the next move (a cache)."""
        self._audible: dict[str, tuple[tuple[str, ...], Origins]] = {}
        """Agent -> (the agents it hears before the next move, origins of the conditions for this) (a cache)."""
        first = self._next_stage()
        if first is None:
            raise ValueError("team: no stage is played: every `when` fails at the start")
        return first

    def start_key(self) -> str:
        return self.dealt_problem.key

    def problem_key(self) -> str:
        return self.current_problem.key

    # --- what an agent is asked ------------------------------------------------------------------------------------

    def together(self, agent: str) -> tuple[str, ...]:
        # All agents of a stage are asked together with its first agent, and later ones alone, so the work of a stage is
        # linear in the number of its agents rather than quadratic.
        return self._speakers if self._stage_begins else (agent,)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        return None if self._call else self.stage.legal

    def hears(self, agent: str) -> tuple[str, ...]:
        if self._call:
            return (self._caller,)
        if agent not in self._audible:
            speakers, gates = [self.team_seats.partner(self.stage, agent)], NO_ORIGINS
            for name, condition in self.stage.hears.items():
                for speaker in self.team_seats.named(name):
                    # The common condition "true" is not evaluated, for speed.
                    heard = True
                    if condition != "true":
                        heard, origins = self._decide(condition, agent, speaker)
                        gates |= origins
                    if heard:
                        speakers.append(speaker)
            if self.stage.tools:
                speakers.append(self.team_seats.toolbox(self.stage, agent))
            self._audible[agent] = tuple(dict.fromkeys(filter(None, speakers))), gates
        return self._audible[agent][0]

    def gates(self, agent: str) -> tuple[int, ...]:
        if self._call:
            return ()
        self.hears(agent)  # fills `_audible`
        origins = self._stage_gates | self._problem_gates | self._audible[agent][1]
        return tuple(sorted({origin.source for origin in origins if isinstance(origin.source, int)}))

    def describe(self, agent: str) -> str:
        if agent not in self._observations:
            self._observations[agent] = self._call or self._render(self.stage.tell, agent, marked=True)
        return self._observations[agent]

    def example_actions(self, agent: str) -> tuple[str, ...]:
        if self._call or self.stage.legal is not None:
            return ()
        held_out = self.blackboard.split == "held_out"
        examples: list[str] = []
        for template in self.stage.examples:
            # In evaluation, no example may reveal the right answer.
            reveals = {"answer", "wrong"} & names_in(template, template=True)
            if not (held_out and (reveals or secret_facts_in(template, self.config.secret_facts))):
                examples.append(self._render(template, agent))
        return tuple(examples)

    def information_state(self, agent: str) -> str:
        if self._call:
            return self._call
        if self.stage.verifies:
            answer = self.blackboard.latest_facts(self.team_seats.partner(self.stage, agent) or "")["move"]
            return add_origins(
                encode_verifier_state(self.current_problem, answer or None), self.blackboard.problem_origins
            )
        moves = [f"{speaker}: {self.blackboard.latest_facts(speaker)['move']}" for speaker in self.hears(agent)]
        return "\n".join((self.stage.label, self.describe(agent), *moves))

    # --- what follows a move ---------------------------------------------------------------------------------------

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        agent = self.agent_selection
        self._observations, self._audible = {}, {}
        if self._call:
            self._call = ""
            self.blackboard.latest_facts(agent)["spoke"] += 1
            return self._caller
        if self.stage.tools and action.startswith(TOOL_CALL_PREFIX) and self._calls_made < self.stage.calls:
            call = action.removeprefix(TOOL_CALL_PREFIX)
            self._call = MarkedText(call, ((0, len(call), Origin(self.steps_taken - 1, "told")),))
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
        """Record a move of the current stage, switch to a posed problem, and pay the rewards due after this stage."""
        stage, partner = self.stage, self.team_seats.partner(self.stage, agent)
        step = self.steps_taken - 1
        facts = self.blackboard.record(stage, agent, action, step)
        if stage.verifies:
            self.blackboard.record_verdict(partner or "", action, stage.scores, step)
        if stage.poses:
            posed = self.tasks.parse_posed_problem(action) if action else None
            facts["posed"] = float(posed is not None)
            self._posed_at, self._problem_gates = step, NO_ORIGINS
            self._work_on(posed)
        self._pay_rewards(stage.label, agent, partner)

    def _next_stage(self) -> str | None:
        """Advance to the next stage and return its first agent, or None at the end of the workflow."""
        for step, gates in self._steps:
            if isinstance(step, Stage):
                self.stage, self._speakers, self._stage_gates = step, self.team_seats.speakers(step), gates
                self._caller, self._call, self._calls_made, self._stage_begins = "", "", 0, True
                return self._speakers[0]
            if self.current_problem is not self.dealt_problem:
                keep, origins = self._decide(step.keep)
                self._problem_gates |= origins
                if keep:
                    self.kept_problems.append(self.current_problem)
                else:
                    self._work_on(None)
        return None

    def _work_on(self, posed: Problem | None) -> None:
        """Switch to the problem `posed`, or to the dealt problem if None (nothing was posed, or it is not kept)."""
        self.current_problem = posed or self.dealt_problem
        self.blackboard.set_problem(self.current_problem, self._posed_at if posed else None)
        if not posed:
            self._problem_gates |= {Origin(self._posed_at, "posed")}

    def _pay_rewards(self, after: str | None, agent: str = "", partner: str | None = None) -> None:
        """Pay the rewards of stage `after` (None: end of the game), where the turn of `agent` was about `partner`.

        An agent without a turn is neither paid nor charged. A partner is paid again only after a further turn.
        """
        for role, components in self.config.rewards.items():
            agents = self.team_seats.agents_of[role]
            payees = tuple(name for name in (agent, partner) if name in agents) or agents
            payments = [(name, component.value) for name, component in components.items() if component.after == after]
            for (name, value), payee in product(payments, payees):
                turns = self.blackboard.latest_facts(payee)["spoke"]
                paid_turns = self._paid_turns.get((role, name, payee), 0) if payee == partner else 0
                if turns > paid_turns:
                    self._paid_turns[role, name, payee] = turns
                    self.add_rewards({payee: self._number(f"rewards.{role}.{name}", value, payee)}, name, value)

    def findings(self) -> Findings:
        measures = {name: self._number(f"measures.{name}", source) for name, source in self.config.measures.items()}
        return Findings(measures, tuple({"problem": asdict(problem)} for problem in self.kept_problems))

    def _number(self, field: str, source: str, agent: str | None = None) -> float:
        """Return the value of an expression; raise ValueError with the name `field` if evaluation fails."""
        try:
            return evaluate_number(source, self.blackboard.select_facts(names_in(source), agent))
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from error

    def _decide(self, condition: str, agent: str | None = None, speaker: str | None = None) -> tuple[bool, Origins]:
        """Return the truth of a condition, and the origins of the facts it used."""
        facts = self.blackboard.select_facts(names_in(condition), agent, speaker, marked=True)
        value, origins = evaluate_with_origins(condition, facts)
        return bool(value), origins

    def _render(self, template: str, agent: str, *, marked: bool = False) -> str:
        """Return a template with the facts filled in; with `marked`, as text with the origins of its spans."""
        text = render(template, self.blackboard.select_facts(names_in(template, template=True), agent, marked=marked))
        return MarkedText(text) if marked and not isinstance(text, MarkedText) else text

    def _refuse(self, agent: str) -> str | None:
        if self._attempt < self.illegal.retry:
            return super()._refuse(agent)
        if penalty := self.config.unreadable.penalty:
            self.add_rewards({agent: -penalty}, "unreadable", "unreadable answer")
        return ""
