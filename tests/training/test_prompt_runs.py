"""Runs that learn instructions: a kill changes no version, and instructions learn beside weights."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl.cluster.placement import open_placement
from marl.rollout.casting import RoleRequestBuilder
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.training.session import NewOrResumedRunStart, train_in_folder
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace, SignalTrigger, kuhn_scenario, outcome, tiny_model, train_to_end

KILLS = [
    SignalTrigger("call", "InstructionSearch._propose", 1),
    SignalTrigger("call", "TemplateEngine.answer", 40),
    SignalTrigger("call", "InstructionSearch._add_version", 6),
    SignalTrigger("call", "PromptLearner.save", 1),
    SignalTrigger("open", "prompts.json", 1),
    SignalTrigger("os.rename", "checkpoints/.", 1),
    SignalTrigger("call", "InstructionSearch._play_rung", 2),
    SignalTrigger("call", "PromptLearner.load_state_dict", 1),
    SignalTrigger("call", "Run.publish", 2),
    SignalTrigger("open", "metrics.jsonl", 2),
]


def search_without_processes() -> dict[str, Any]:
    """The scenario of the search, short, with rewards that need no verifier."""
    given = yaml.safe_load((SCENARIOS / "prompt_search.yaml").read_text())
    reward = "own.readable * (own.move == answer)"
    given["game"] |= {"stages": [{"role": "editor"}], "rewards": {"editor": {"correct": reward}}}
    del given["game"]["measures"], given["roles"]["verifier"], given["policies"]["checker"], given["evaluate"]
    given["policies"]["editor"]["learner"] |= {"trials": 16, "candidates": 4}
    return given | {"schedule": {"steps": 10, "groups": 4, "group_size": 2}, "checkpoint": {"every": 1}}


@pytest.mark.slow
@pytest.mark.one_in(3)
def test_ten_kills_change_no_version(tmp_path: Path) -> None:
    whole = train_to_end(tmp_path / "whole", search_without_processes())
    killed = RunWorkspace(tmp_path / "killed", search_without_processes())
    for kill in KILLS:
        assert killed.train("--resume", "auto", kill=kill) == -9, (kill, killed.take_output())
    assert killed.train("--resume", "auto") == 0, killed.take_output()
    assert outcome(killed.run) == outcome(whole.run)
    record = json.loads((killed.run / "checkpoints" / "000010" / "policies" / "editor" / "prompts.json").read_text())
    assert record["incumbent"] > 0


def team_with_instructions(**learner: Any) -> dict[str, Any]:
    """A matrix game: one seat learns weights; the other does what its instructions say, and learns these.

    Whatever the first agent plays, move b of the second one pays the team 2 more than move a.
    """
    follows = "{% if 'Play b' in system %}[b]{% else %}[a]{% endif %}"
    proposes = "<instructions>{{ ['Play a.', 'Play b.', 'Play {{ nobody }}.'][seed % 3] }}</instructions>"
    prompt = {"kind": "prompt", "proposer": "writer", "candidates": 4, "trials": 16} | learner
    player = {"kind": "player", "sampling": {"max_tokens": 6}}
    return kuhn_scenario() | {
        "game": {"kind": "matrix", "table": [[1, 3], [0, 2]]},
        "seats": {"agent_0": "player", "agent_1": "follower"},
        "roles": {
            "player": player | {"policy": "actor"},
            "follower": player | {"policy": "follower", "instructions": "Play."},
        },
        "policies": {
            "actor": {"model": tiny_model(), "learner": {"kind": "grpo", "lr": 3e-3}},
            "follower": {"engine": {"kind": "template", "answer": follows}, "learner": prompt},
            "writer": {"engine": {"kind": "template", "answer": proposes}},
        },
        "schedule": {"steps": 2, "groups": 4, "group_size": 4, "threads": 1},
        "evaluate": {},
        "checkpoint": {"every": 2},
    }


def rows_of_run(folder: Path, given: dict[str, Any]) -> list[dict[str, float]]:
    """Train, and return the rows of the steps."""
    scenario = validate(given, "test")
    with open_placement(scenario) as placement:
        assert train_in_folder(scenario, folder, NewOrResumedRunStart(), [], placement=placement)
    return list(RunFolder(folder).rows())[1:]


def versions(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / "000002" / "policies" / "follower" / "prompts.json").read_text())


def test_one_run_learns_instructions_for_one_role_and_weights_for_another(tmp_path: Path) -> None:
    first, last = rows_of_run(tmp_path / "run", team_with_instructions())
    assert (first["policy/follower/version"] > 0) or (last["policy/follower/version"] > 0)
    assert last["policy/actor/grad_norm"] > 0
    found = versions(tmp_path / "run")
    adopted = found["versions"][found["incumbent"]]
    assert adopted["instructions"] == {"follower": "Play b."}
    assert adopted["gain"] == [2.0, 2.0, 2.0]
    assert (tmp_path / "run" / "checkpoints" / "000002" / "policies" / "actor" / "model.safetensors").is_file()
    dropped = [version["reason"] for version in found["versions"] if version["status"] == "dropped"]
    assert any("nobody" in reason for reason in dropped)


def test_several_simulators_learn_the_same_instructions(tmp_path: Path) -> None:
    rows_of_run(tmp_path / "one", team_with_instructions() | {"cluster": {"kind": "local", "simulators": 1}})
    rows = rows_of_run(tmp_path / "two", team_with_instructions() | {"cluster": {"kind": "local", "simulators": 2}})
    assert versions(tmp_path / "two")["versions"][0]["status"] == "initial"
    assert rows[-1]["policy/follower/version"] == versions(tmp_path / "one")["incumbent"] > 0


def test_a_builder_of_requests_takes_learned_instructions_to_another_process() -> None:
    scenario = validate(team_with_instructions(), "test")
    builder = RoleRequestBuilder(scenario.roles, 0, {"follower": "Play b."})
    assert pickle.loads(pickle.dumps(builder)).current_role("follower").learnable_instructions == "Play b."


def test_the_run_goes_on_without_searches_when_their_budget_is_reached(tmp_path: Path) -> None:
    # The writer's four requests reserve 4 tokens each; the other seat samples up to 6 in an episode.
    first, last = rows_of_run(tmp_path / "run", team_with_instructions(budget={"tokens": 40}, max_tokens=4))
    assert 0 < last["policy/follower/search_tokens"] <= 40
    assert last["policy/follower/search_tokens"] == first["policy/follower/search_tokens"]
    assert last["policy/follower/version"] == 0
    assert "policy/follower/dropped" not in last


def test_a_budget_needs_a_single_simulator() -> None:
    given = team_with_instructions(budget={"tokens": 40}) | {"cluster": {"kind": "local", "simulators": 2}}
    with pytest.raises(ScenarioError, match=r"follower.learner.budget: .* several simulators"):
        validate(given, "test")
