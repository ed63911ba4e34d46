"""Expert iteration whose search values positions by the critic that learns beside the policy, in a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import marl
from marl.commands.eval.evaluate import evaluate_policies, parse_search, policies_of_run, policies_of_scenario
from marl.core.graph import Trajectory
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.training.build import build
from marl.training.restore import restore_critic
from tests.support.run_processes import tiny_model

SEARCH = parse_search("{simulations: 4, values: critic}")


def nim(**learner: Any) -> dict[str, Any]:
    critic = {"critic": {"where": "trunk", "clip": None}}
    return {
        "game": {"kind": "nim", "piles": [3, 6]},
        "seats": {"player_0": "player", "player_1": "player"},
        "roles": {"player": {"kind": "player", "policy": "actor", "sampling": {"max_tokens": 6}}},
        "policies": {"actor": {"model": tiny_model(), "learner": {"kind": "sft", "lr": 3e-3} | (learner or critic)}},
        "credit": {"scale": 4.0, "assign": {"kind": "outcome"}, "baseline": {"kind": "value"}},
        "experience": {"kind": "search", "simulations": 4, "values": "critic"},
        "schedule": {"steps": 2, "groups": 4, "group_size": 1, "threads": 1},
        "checkpoint": {"every": 2, "trajectories": 1.0},
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "run"
    assert marl.train(validate(nim()), folder)
    return folder


def played(run: Path) -> list[Trajectory]:
    return RunFolder(run).load_trajectories(2)


def test_the_critic_learns_how_searched_games_end_and_the_policy_the_whole_distribution(run: Path) -> None:
    rows = list(RunFolder(run).rows())
    # Nothing but 0 is expected before the first update, and scaled outcomes are 4 or -4: half their square is 8.
    assert rows[1]["policy/actor/value_loss"] == pytest.approx(8.0)
    turns = [turn for trajectory in played(run) for turn in trajectory.turns]
    assert all(sum(target.share for target in turn.completion.targets) == pytest.approx(1.0) for turn in turns)


def test_values_of_a_checkpoint_are_read_from_its_head_and_divided_by_the_scale_of_credit(run: Path) -> None:
    turns = [turn for trajectory in played(run) for turn in trajectory.turns][:3]
    values = restore_critic(run, 2)(turns)
    again = build(RunFolder(run).scenario())
    state = RunFolder(run).rewind_to_checkpoint(2)
    assert state is not None
    again.load_state_dict(state)
    learner: Any = again.learners["actor"]
    head = learner.objective.modules["critic"].head
    for turn, value in zip(turns, values, strict=True):
        with torch.no_grad():
            states = learner.model.model(torch.tensor([turn.completion.prompt_ids])).last_hidden_state[0, -1]
            assert value == pytest.approx(float(head.weight[0] @ states + head.bias) / 4.0, abs=1e-5)
    assert again.simulator.critic is not None
    assert again.simulator.critic(turns) == pytest.approx(values, abs=1e-5)


def test_eval_searches_by_the_critic_of_a_run_and_says_who_has_none(run: Path, tmp_path: Path) -> None:
    figures = evaluate_policies(policies_of_run(run, (), None, best=False), "random", 2, SEARCH, 10**6)
    assert figures["eval/random/episodes"] == 2
    assert 0 <= figures["eval/optimal"] <= 1
    file = Path(__file__).parents[2] / "scenarios" / "nim_self_play.yaml"
    with pytest.raises(ScenarioError, match="nobody has learned values: give the folder of a run; choices: rollouts"):
        evaluate_policies(policies_of_scenario(file, [], None, best=False), "random", 2, SEARCH)
    plain = nim(kind="sft") | {"credit": {}, "experience": {"kind": "rollouts"}}
    plain["schedule"] = plain["schedule"] | {"steps": 1}
    assert marl.train(validate(plain), tmp_path / "plain")
    with pytest.raises(ScenarioError, match=r"no learner of .* has one \(learners: 'sft'\); choices: rollouts"):
        evaluate_policies(policies_of_run(tmp_path / "plain", (), None, best=False), "random", 2, SEARCH)
