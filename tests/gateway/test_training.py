"""Training of agents that programs ask: they learn, frozen ones keep their weights, and equal runs have equal bits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from marl import load, train
from marl.core.graph import read_trajectories
from marl.runs.run_folder import RunFolder
from marl.scenario.schema import Scenario
from marl.training.build import build
from marl.training.loop import StopRequest, TrainingLoop
from tests.support.paths import ROOT, SCENARIOS

sys.path.insert(0, str(ROOT / "tests" / "bench"))
import programs
from equal_bits import result_of

pytestmark = pytest.mark.slow
CLIENTS = ROOT / ".clients" / "bin" / "python"
"""Interpreter that has LangGraph, the Agents SDK and the client of OpenAI."""


def small_loop() -> Scenario:
    """The loop with a frozen planner, small models and a short schedule."""
    changes = ["schedule.steps=3", "schedule.groups=6", "schedule.group_size=4", "evaluate.held_out=8"]
    changes += ["checkpoint.every=1", "checkpoint.trajectories=1", "policies.planner.learner=null"]
    for policy in ("planner", "solver", "critic"):
        changes += [f"policies.{policy}.model.{field}" for field in ("hidden=16", "layers=1", "warm_up.steps=40")]
        changes += [f"policies.{policy}.model.warm_up.{field}" for field in ("episodes=128", "batch=32", "lr=0.01")]
    return load(SCENARIOS / "programs" / "loop.yaml", changes)


def test_two_roles_of_a_program_learn_and_a_frozen_one_keeps_its_weights(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    scenario, home = small_loop(), RunFolder(tmp_path / "run")
    home.create(scenario)
    run: Any = build(scenario)

    def weights(policy: str) -> dict[str, torch.Tensor]:
        state = run.simulator.engines[policy].network.model.state_dict()
        return {name: tensor.clone() for name, tensor in state.items()}

    before = {policy: weights(policy) for policy in ("planner", "solver", "critic")}
    assert TrainingLoop(run, home, [])(StopRequest())
    changed = {
        policy: any(not torch.equal(old[name], new) for name, new in weights(policy).items())
        for policy, old in before.items()
    }
    assert changed == {"planner": False, "solver": True, "critic": True}
    assert {"policy/critic/loss", "policy/solver/loss"} <= {name for row in home.rows() for name in row}
    trained = {folder.name for folder in (tmp_path / "run" / "checkpoints" / "000003" / "policies").iterdir()}
    assert trained == {"solver", "critic"}
    episodes = list(read_trajectories(tmp_path / "run" / "trajectories" / "000003.jsonl.zst"))
    assert len(episodes) == 24
    for episode in episodes:
        assert [turn.agent for turn in episode.turns][:4] == ["planner", "solver", "critic", "loop"]
        versions = {turn.agent: turn.completion.versions for turn in episode.turns}
        assert versions["solver"] == versions["critic"] == (2, 2)
        assert versions["planner"] == (0, 0)


def test_two_runs_of_a_program_with_equal_seeds_are_equal_to_the_bit(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    for name in ("one", "other"):
        assert train(small_loop(), tmp_path / name)
    one, other = (result_of(tmp_path / name) for name in ("one", "other"))
    assert one["weights"] == other["weights"]
    assert len(one["weights"]) == 2
    assert one["metrics"] == other["metrics"]


def test_the_native_team_of_all_programs_is_the_same() -> None:
    natives = []
    for program in programs.PROGRAMS:
        natives.append(programs.native_scenario(programs.program_scenario(program, 0, 1.0, [])))
    assert natives[0] == natives[1] == natives[2]
    assert natives[0].policies["solver"] == load(SCENARIOS / "programs" / "graph.yaml").policies["solver"]


def test_agents_of_a_program_learn_in_a_fifth_of_the_budget(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The programs of the frameworks send the same prompts and learn to the same bits, but take several times as long.
    if not CLIENTS.exists():
        pytest.skip("no .clients: `make clients` sets it up")
    monkeypatch.setenv("MARL_CACHE", str(made))
    overrides = [f"policies.program.engine.python={CLIENTS}", "evaluate.held_out=100"]
    figures = programs.learn(programs.program_scenario("openai_client", 0, 0.2, overrides), tmp_path / "run")
    assert figures["held_out/failed/end"] == 0
    assert figures["held_out/success/start"] + 0.05 < figures["held_out/success/end"]
    assert figures["held_out/success/end"] > 0.4, "eight updates"
