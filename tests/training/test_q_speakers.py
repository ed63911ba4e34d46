"""Controllers that hold values choose whom language models hear: frozen ones, ones that learn, and a remote one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import marl
from marl.core.graph import read_trajectories
from marl.models.text_encoders import FrozenHiddenStates
from marl.scenario.load import validate
from marl.training.build import prepare_models
from tests.support.misbehaving_servers import replies_with_text, serving
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace, SignalTrigger, contents, metric_lines, train_to_end

SPEAKER = {"kind": "tiny", "hidden": 16, "layers": 1, "warm_up": {"steps": 40, "episodes": 64, "batch": 16}}
FROZEN = {"model": SPEAKER}
LEARNING = {"model": SPEAKER, "learner": {"kind": "grpo", "lr": 1.0e-3}}


def scenario(speaker: dict[str, Any], steps: int = 4, **encoder: Any) -> dict[str, Any]:
    """The shipped scenario, small, with other speakers."""
    data = yaml.safe_load((SCENARIOS / "agent_q_mix.yaml").read_text())
    data["game"]["task"] |= {"train": 40, "held_out": 10}
    model = data["policies"]["controller"]["model"] | {"width": 16, "memory": 16}
    learner = data["policies"]["controller"]["learner"] | {"batch": 8, "updates": 2, "replay": 50}
    data["policies"] = {"controller": data["policies"]["controller"] | {"learner": learner, "model": model | encoder}}
    data["policies"]["speaker"] = speaker
    data["schedule"] |= {"steps": steps, "groups": 4, "group_size": 4}
    if "learner" in speaker:
        data["credit"]["roles"] = {"speaker": {"baseline": {"kind": "group", "like": "start"}}}
    return data | {"evaluate": {"every": 3, "held_out": 5}, "checkpoint": {"every": 2}}


def figures(run: Path) -> list[dict[str, float]]:
    return [json.loads(row) for row in metric_lines(run)]


def learnt(run: Path) -> dict[str, bytes]:
    """Weights and states of all checkpoints; settings name the folder of made models, which is each desk's own."""
    files = contents(run, "checkpoints")
    return {name: held for name, held in files.items() if name.endswith((".safetensors", "/state.json"))}


@pytest.mark.slow
@pytest.mark.parametrize("speaker", [FROZEN, LEARNING], ids=["frozen", "learning"])
def test_a_run_with_language_models_as_speakers_goes_on_after_a_kill_as_if_nothing_had_been(
    speaker: dict[str, Any], tmp_path: Path
) -> None:
    # What is said is read by the model from which the speaker starts, also while the speaker learns.
    data = scenario(speaker, encoder={"kind": "hidden_states", "policy": "speaker"})
    whole = train_to_end(tmp_path / "whole", data)
    last = figures(whole.run)[-1]
    assert last["role/speaker/tokens"] > 1
    assert "policy/controller/loss" in last
    desk = RunWorkspace(tmp_path / "killed", data)
    desk.path.mkdir()
    (desk.path / "cache").symlink_to(whole.path / "cache")  # one warm-up is enough
    assert desk.train(kill=SignalTrigger("call", "QLearner._gradient_step", 4)) == -9, desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert metric_lines(desk.run) == metric_lines(whole.run)
    assert learnt(desk.run) == learnt(whole.run)


def test_an_encoder_reads_by_the_weights_from_which_a_speaker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(tmp_path))

    def prepared(policy: str) -> dict[str, Any]:
        speaker = {"model": {"kind": "tiny", "hidden": 16}}
        checked = validate(scenario(speaker, encoder={"kind": "hidden_states", "policy": policy}))
        return prepare_models(checked, checked.policies)

    weights = prepared("speaker")
    assert weights["controller"].settings.encoder.model.path == weights["speaker"].path
    tokenizer, network = weights["speaker"].tokenizer(), weights["controller"].model()
    assert network.encoder.encode("speaker_1 said b2") == tokenizer("speaker_1 said b2")["input_ids"]
    for other in ("spaeker", "controller"):
        with pytest.raises(ValueError, match=f"policy 'controller': encoder.policy: '{other}' is no policy with"):
            prepared(other)
    for both in ({}, {"policy": "speaker", "model": "models/base"}):
        with pytest.raises(ValueError, match="encoder 'hidden_states' reads by one model; give one of the two"):
            FrozenHiddenStates.model_validate(both)


def test_controllers_learn_over_a_remote_speaker_whose_words_are_metered_and_paid(tmp_path: Path) -> None:
    with serving(replies_with_text("[a1 b2]", usage=(10, 4))) as server:
        engine = {"kind": "openai", "base_url": server.url, "model": "m", "key_env": None}
        data = scenario({"engine": engine}, steps=2) | {"evaluate": {"against": {}}}
        assert marl.train(validate(data), tmp_path / "run")
    _, step, last = figures(tmp_path / "run")
    assert "policy/controller/loss" in last
    spoken = 0
    for trajectory in read_trajectories(tmp_path / "run" / "trajectories" / "000001.jsonl.zst"):
        turns = [turn for turn in trajectory.turns if turn.role == "speaker"]
        measures, spoken = trajectory.findings.measures, spoken + len(turns)
        assert measures["words"] == 2 * (len(turns) + measures["edges"])
        cost = 0.5 * min(measures["words"] / 12, 1)
        assert trajectory.returns.get("controller_0", 0.0) == pytest.approx(measures["success"] - cost)
    assert step["policy/speaker/completion_tokens"] == 4 * spoken
