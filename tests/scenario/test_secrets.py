"""The right answer reaches no prompt: episodes of every committed team whose answers and secret facts are canaries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

import marl
from marl.core.types import Deal, Problem, Request
from marl.protocols import Split, TaskProblems
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from tests.support.small_games import FunctionEngine
from tests.support.small_team_scenarios import SCENARIOS, TEAMS

CANARIES = ("zarquonbleen", "918273645")
CHECKS = ("correct", "brief", "passes", "reward", "recall", "precision", "new")


@dataclass(frozen=True)
class Canaries:
    """Problems whose answers, wrong answers and secret facts stand nowhere else."""

    tasks: TaskProblems
    secret: frozenset[str]

    def problem_count(self, split: Split) -> int:
        return self.tasks.problem_count(split)

    def problem(self, split: Split, index: int) -> Problem:
        return self._changed(self.tasks.problem(split, index))

    def parse_posed_problem(self, text: str) -> Problem | None:
        problem = self.tasks.parse_posed_problem(text)
        return problem and self._changed(problem)

    def _changed(self, problem: Problem) -> Problem:
        facts = {name: canary(fact) if name in self.secret else fact for name, fact in problem.facts.items()}
        return replace(problem, answer=CANARIES[0], wrong=(CANARIES[0],) * len(problem.wrong), facts=facts)


def canary(fact: Any) -> Any:
    if isinstance(fact, Mapping):
        return {name: canary(part) for name, part in fact.items()}
    if isinstance(fact, list | tuple):
        return [canary(part) for part in fact]
    return CANARIES[0] if isinstance(fact, str) else int(CANARIES[1])


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("name", TEAMS)
def test_the_right_answer_is_in_no_prompt(name: str, split: str) -> None:
    scenario = marl.load(SCENARIOS / f"{name}.yaml")
    game: Any = scenario.game
    # Where `cached_property` keeps it.
    vars(game)["tasks"] = Canaries(game.task.build(), game.task.secret_fact_names)
    verdict = json.dumps({"scores": dict.fromkeys(CHECKS, 0.0)})

    def say(request: Request) -> str:
        if scenario.policies[request.policy].engine.is_rule_based:
            return verdict
        asked.append(request)
        options = list(request.options.values()) if request.options else ["[10 + 10]", "[0.9]", "[20]", " "]
        return options[len(asked) % len(options)]

    asked: list[Request] = []
    engines = dict.fromkeys(scenario.policies, FunctionEngine(say))
    simulator = RolloutSimulator(game, RoleRequestBuilder(scenario.roles, 0), engines, deadline_s=60.0)
    simulator.play([Deal(f"e{i}", "g", i, scenario.seats, options={"split": split, "index": i}) for i in range(8)])
    assert len(asked) >= 8
    for request in asked:
        shown = "\n".join([message.content for message in request.messages] + [request.state])
        assert not [word for word in CANARIES if word in shown]
