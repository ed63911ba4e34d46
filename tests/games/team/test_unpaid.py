"""Whoever did not speak is neither paid nor charged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.core.types import Deal, Request
from marl.engines.scripted import Random
from marl.engines.workers.settings import Tools, Verifiers
from marl.evaluation.dry_run import RandomPlayRequestBuilder
from marl.protocols import Engine
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario
from tests.support.addition_task import VerbatimRole, team_config, team_deal, team_simulator
from tests.support.paths import SCENARIOS
from tests.support.small_games import FunctionEngine

SOLVE = {"role": "solver", "n": 2, "examples": ["4"]}
TRAINABLE_FROM_THE_START = [
    *sorted(SCENARIOS.glob("*.yaml")),
    SCENARIOS / "recipes" / "iterative_dpo.yaml",
    SCENARIOS / "recipes" / "rlhf_1_sft.yaml",
]


def players(scenario: Scenario) -> Mapping[str, Engine]:
    """Return random players, verifiers that toss a coin, and tools that always return the same."""
    engines: dict[str, Engine] = {}
    for name, policy in scenario.policies.items():
        engines[name] = Random().build(None)
        if isinstance(policy.engine, Tools):
            engines[name] = FunctionEngine(lambda request: "4")
        if isinstance(policy.engine, Verifiers):
            checks = tuple(policy.engine.checks)

            def verdict(request: Request, checks: tuple[str, ...] = checks) -> str:
                return json.dumps({"scores": dict.fromkeys(checks, request.seed % 2)})

            engines[name] = FunctionEngine(verdict)
    return engines


@pytest.mark.parametrize("file", TRAINABLE_FROM_THE_START, ids=lambda file: file.stem)
def test_no_shipped_scenario_pays_anybody_without_a_turn(file: Path) -> None:
    for scenario in marl.load(file).scenario_by_game().values():
        check_who_is_paid(scenario)


def check_who_is_paid(scenario: Scenario) -> None:
    """Play a few random episodes, and check that whoever earns a reward has had a turn."""
    simulator = RolloutSimulator(scenario.game, RandomPlayRequestBuilder(scenario), players(scenario), deadline_s=20.0)
    options = [None] * 4 + [*scenario.game.held_out_reset_options(4)]
    names = [f"{i}" for i in range(len(options))]
    deals = [Deal(n, n, i, scenario.seats, options=options[i]) for i, n in enumerate(names)]
    played = simulator.play(deals)
    assert len(played) == len(deals)
    for trajectory in played:
        speakers = {turn.agent for turn in trajectory.turns}
        paid = [reward for reward in trajectory.rewards if reward.agent not in speakers]
        # In games such as poker a player can win or lose before its first move.
        assert [reward for reward in paid if reward.cause != "result of the game"] == []


@pytest.mark.parametrize(
    "judging", [{"role": "verifier", "verifies": "solver", "scores": ["correct"]}, {"role": "critic", "each": "solver"}]
)
def test_who_is_spoken_about_again_is_paid_again_only_if_it_has_spoken_since(judging: dict[str, Any]) -> None:
    again = {**SOLVE, "when": "not solver.spoke[0] or not split == 'train'"}
    due = {"value": "own.spoke", "after": judging["role"]}
    game = team_config({"repeat": 3, "stages": [again, judging]}, rewards={"solver": {"asked": due}})
    for split, paid in (("train", [1.0]), ("held_out", [1.0, 2.0, 3.0])):
        [trajectory] = team_simulator(game, lambda request: "4", verifier=VerbatimRole(policy="grader")).play(
            [team_deal(game, split=split)]
        )
        for agent in ("solver_0", "solver_1"):
            assert [reward.value for reward in trajectory.rewards if reward.agent == agent] == paid
