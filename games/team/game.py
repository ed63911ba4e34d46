"""The team game: stage after stage of a workflow, each spoken by its agents at once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from games.base import IllegalMove, TextGame
from games.team.board import Board
from games.team.expressions import evaluate, names_in, number, render
from games.team.stages import Keep, Stage
from games.team.workflow import walk
from marl.cases import state_of
from marl.types import CALL, Findings, Problem

if TYPE_CHECKING:
    from games.team.settings import Payment, TeamConfig


class Team(TextGame):
    """A team works on a problem. What an unreadable answer costs, the settings say; the episode goes on without it."""

    name = "team"
    choices = ("split", "index", "problem", "open")

    def __init__(self, config: TeamConfig) -> None:
        self.config, self.cast, self.tasks = config, config.cast, config.tasks
        self.board = Board(config.cast)
        super().__init__(tuple(config.cast.roles), IllegalMove(retry=config.unreadable.retry))

    # --- the deal --------------------------------------------------------------------------------------------------

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.dealt = self.current = self._chosen(rng, options)
        self.kept: list[Problem] = []
        # A problem that is handed over was posed before, and waited in a pool.
        self.board.deal(self.current, "pool" if "problem" in options else options.get("split", "train"))
        self._steps = walk(self.config.stages, self._holds)
        first = self._next_stage()
        if first is None:
            raise ValueError("team: no stage is played: every `when` fails at the start")
        return first

    def _chosen(self, rng: random.Random, options: Mapping[str, Any]) -> Problem:
        if "problem" in options:
            given = options["problem"]
            return Problem(**{**given, "wrong": tuple(given.get("wrong", ()))})
        split = options.get("split", "train")
        if split not in ("train", "held_out"):
            raise ValueError(f"team: option split: {split!r} is no split; choices: train, held_out")
        size = self.tasks.size(split)
        share = options.get("open", 1.0)
        index = options.get("index", rng.randrange(max(1, round(size * share))))
        if type(index) is not int or not 0 <= index < size:
            raise ValueError(f"team: option index: {index!r} is no problem of {split}; choices: 0 to {size - 1}")
        return self.tasks.problem(split, index)

    def start_key(self) -> str:
        return self.dealt.key

    def problem(self) -> str:
        return self.current.key

    # --- what an agent is asked ------------------------------------------------------------------------------------

    def together(self, agent: str) -> tuple[str, ...]:
        # All of a stage are asked when its first agent is; after that each stands for itself, so that the work of a
        # stage grows with its agents and not with their square.
        return self._queue if self._opening else (agent,)

    def legal(self) -> tuple[str, ...] | None:
        return None if self._answers_call else self.stage.legal

    def hears(self, agent: str) -> tuple[str, ...]:
        if self._answers_call:
            return (self._caller,)
        heard = [self.cast.partner(self.stage, agent)]
        for source, condition in self.stage.hears.items():
            heard += [it for it in self.cast.named(source) if condition == "true" or self._holds(condition, agent, it)]
        if self.stage.tools:
            heard.append(self.cast.toolbox(self.stage, agent))
        return tuple(dict.fromkeys(filter(None, heard)))

    def describe(self, agent: str) -> str:
        return self._call if self._answers_call else self._filled(self.stage.tell, agent)

    def examples(self, agent: str) -> tuple[str, ...]:
        if self._answers_call or self.stage.legal is not None:
            return ()
        return tuple([self._filled(example, agent) for example in self.stage.examples])

    def state_of(self, agent: str) -> str:
        if self._answers_call:
            return self._call
        if self.stage.verifies:
            answer = self.board.of(self.cast.partner(self.stage, agent) or "")["move"]
            return state_of(self.current, answer or None)
        heard = [f"{other}: {self.board.of(other)['move']}" for other in self.hears(agent)]
        return "\n".join((self.stage.called, self.describe(agent), *heard))

    # --- what follows an answer ------------------------------------------------------------------------------------

    def move(self, action: str) -> str | Mapping[str, float]:
        agent = self.agent_selection
        if self._answers_call:
            self._call = ""
            return self._caller
        if self._calls(agent, action):
            self._caller, self._call, self._opening = agent, action.removeprefix(CALL), False
            self._called += 1
            return self.cast.toolbox(self.stage, agent)
        self._note(agent, action)
        self._called, self._queue, self._opening = 0, self._queue[1:], False
        after = self._queue[0] if self._queue else self._next_stage()
        return self._close() if after is None else after

    @property
    def _answers_call(self) -> bool:
        return bool(self._call)

    def _calls(self, agent: str, action: str) -> bool:
        return bool(self.stage.tools) and action.startswith(CALL) and self._called < self.stage.calls

    def _note(self, agent: str, action: str) -> None:
        stage, partner = self.stage, self.cast.partner(self.stage, agent)
        facts = self.board.note(stage, agent, action)
        if stage.verifies:
            self.board.verdict(partner or "", action, stage.scores)
        if stage.poses:
            posed = self.tasks.posed(action) if action else None
            facts["posed"] = float(posed is not None)
            self._work_on(posed or self.dealt)
        self._reward(partial(_due, after=stage.called), agent, partner)

    def _next_stage(self) -> str | None:
        """Go on to the next stage; its first agent, or None at the end."""
        for step in self._steps:
            if isinstance(step, Stage):
                self.stage, self._queue = step, self.cast.speakers(step)
                self._caller, self._call, self._called, self._opening = "", "", 0, True
                return self._queue[0]
            self._keep(step)
        return None

    def _keep(self, step: Keep) -> None:
        if self.current is self.dealt:
            return
        if self._holds(step.keep):
            self.kept.append(self.current)
        else:
            self._work_on(self.dealt)

    def _work_on(self, problem: Problem) -> None:
        self.current = self.board.problem = problem

    # --- what it was worth -----------------------------------------------------------------------------------------

    def _close(self) -> Mapping[str, float]:
        self._reward(partial(_due, after=None))
        return {}

    def _reward(self, due: Any, agent: str = "", partner: str | None = None) -> None:
        for role, parts in self.config.rewards.items():
            for name, payment in parts.items():
                if due(payment):
                    for payee in self._payees(role, agent, partner):
                        value = number(payment.value, self._facts(payment.value, payee))
                        self.pay({payee: value}, name)

    def _payees(self, role: str, agent: str, partner: str | None) -> tuple[str, ...]:
        agents = self.cast.of_role[role]
        meant = [each for each in (agent, partner) if each in agents]
        return tuple(meant) or agents

    def findings(self) -> Findings:
        measures = {name: number(source, self._facts(source)) for name, source in self.config.measures.items()}
        return Findings(measures, tuple({"problem": asdict(problem)} for problem in self.kept))

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _facts(self, source: str, own: str | None = None, it: str | None = None, *, template: bool = False) -> Any:
        return self.board.facts(names_in(source, template=template), own, it)

    def _holds(self, condition: str, own: str | None = None, it: str | None = None) -> bool:
        return bool(evaluate(condition, self._facts(condition, own, it)))

    def _filled(self, template: str, own: str) -> str:
        return render(template, self._facts(template, own, template=True))

    def _refuse(self, agent: str) -> str | None:
        if self._attempt < self.illegal.retry:
            return super()._refuse(agent)
        if penalty := self.config.unreadable.penalty:
            self.pay({agent: -penalty}, "unreadable")
        return ""


def _due(payment: Payment, after: str | None) -> bool:
    return payment.after == after
