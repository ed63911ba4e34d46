"""`marl export`, and going on from another run's adapter: what was learnt travels, and ordinary libraries load it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import marl
from marl.export.saved_policy import copy_policy, find_saved_policy, merge_policy
from marl.models.adapter import Adapter
from marl.models.pretrained import Pretrained
from marl.runs.checkpoint import CheckpointError
from marl.runs.trained_model import Trained
from marl.scenario.checks import missing_requirements
from marl.scenario.load import ScenarioError, validate
from marl.training.build import build
from marl.training.restore import restore_simulator
from tests.support.command_line import marl_output
from tests.support.run_processes import kuhn_scenario, tiny_model

LEARNER = {"kind": "grpo", "lr": 1e-2}
MADE: Any = tiny_model(warm_up={"steps": 5, "episodes": 32, "batch": 8, "lr": 2e-2})


def adapter(**settings: Any) -> dict[str, Any]:
    return {"kind": "adapter", "base": deepcopy(MADE), "rank": 4, **settings}


def duel(student: dict[str, Any], teacher: dict[str, Any], steps: int = 1) -> dict[str, Any]:
    """A student who learns, and a teacher who does not."""
    roles = {name: {"kind": "player", "policy": name, "sampling": {"max_tokens": 6}} for name in ("student", "teacher")}
    return kuhn_scenario(
        seats={"player_0": "student", "player_1": "teacher"},
        roles=roles,
        policies={"student": {"model": student, "learner": LEARNER}, "teacher": {"model": teacher}},
        schedule={"steps": steps, "groups": 4, "group_size": 4, "threads": 1},
        evaluate={},
    )


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def first(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose student is an adapter on a base that was made for it."""
    run = tmp_path_factory.mktemp("runs") / "first"
    assert marl.train(validate(duel(adapter(use_dora=True), adapter())), run)
    return run


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a whole model."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert marl.train(
        validate(kuhn_scenario(schedule={"steps": 1, "groups": 2, "group_size": 2, "threads": 1}, evaluate={})), run
    )
    return run


def going_on(run: Path, **changes: Any) -> dict[str, Any]:
    return {"kind": "trained", "run": str(run), "policy": "student", **changes}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(8)[None]).logits


def weights(run: Path, step: int = 1) -> dict[str, torch.Tensor]:
    return load_file(run / f"checkpoints/{step:06d}/policies/student/adapter_model.safetensors")


# --- going on from an adapter ----------------------------------------------------------------------------------------


def test_a_run_goes_on_from_another_runs_adapter_on_the_same_base(first: Path, tmp_path: Path) -> None:
    scenario = validate(duel(going_on(first), going_on(first), steps=2))
    assert missing_requirements(scenario) == []
    begun: Any = build(scenario)
    assert begun.simulator.engines["student"] is begun.simulator.engines["teacher"]
    published: Any = begun.learners["student"].publish()
    saved = {tuple(tensor.flatten().tolist()) for tensor in weights(first).values()}
    assert {tuple(tensor.flatten().tolist()) for _, tensor in published} == saved
    assert marl.train(scenario, tmp_path / "second")
    settings = json.loads((tmp_path / "second/checkpoints/000002/policies/student/adapter_config.json").read_text())
    assert settings["use_dora"]
    assert settings["r"] == 4
    # The run keeps the checkpoint with which it began, as a number.
    kept = validate(duel(going_on(first, step=1), going_on(first, step=1), steps=2))
    assert restore_simulator(tmp_path / "second")[0] == kept
    # Without the first run, it is the teacher alone that is missing.
    moved = first.rename(first.with_name("moved"))
    try:
        with pytest.raises(ValueError, match=rf"policy 'teacher': model '{first}': no run in"):
            restore_simulator(tmp_path / "second")
    finally:
        moved.rename(first)


def test_a_base_that_is_gone_is_named(first: Path, cache: Path) -> None:
    base = Path(str(find_saved_policy(first, None).base))
    hidden = base.rename(base.with_name("hidden"))
    try:
        [problem] = Trained(**going_on(first)).unmet_requirements()
    finally:
        hidden.rename(base)
    assert str(base) in problem
    assert "no such folder" in problem


def test_an_adapter_is_no_base_of_another(first: Path) -> None:
    model = {"kind": "adapter", "base": going_on(first)}
    problems = missing_requirements(validate(duel(model, adapter())))
    assert any("base: is an adapter itself" in problem and "marl export" in problem for problem in problems)


def test_a_policy_that_was_not_trained_is_said_to_have_stayed(first: Path) -> None:
    [problem] = Trained(**going_on(first, policy="teacher")).unmet_requirements()
    assert "trains no policy 'teacher', which stays as it is there" in problem
    assert problem.endswith("choices: student")


def test_best_without_a_measure_says_what_to_give(first: Path) -> None:
    [problem] = Trained(**going_on(first, step="best")).unmet_requirements()
    assert "it has no evaluate.keep_best" in problem


def test_a_relative_base_is_saved_by_its_absolute_path(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(str(find_saved_policy(first, None).base), tmp_path / "models" / "base")
    monkeypatch.chdir(tmp_path)
    model = {"kind": "adapter", "base": "./models/base", "rank": 2}
    assert marl.train(validate(duel(model, model)), tmp_path / "run")
    folder = tmp_path / "run/checkpoints/000001/policies/student"
    monkeypatch.chdir("/")
    assert logits(AutoPeftModelForCausalLM.from_pretrained(folder)).isfinite().all()
    found = Adapter.from_folder(folder)
    assert found.base == Pretrained(path=str(tmp_path / "models" / "base"))
    assert (found.rank, found.targets) == (
        2,
        ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"),
    )


# --- export ----------------------------------------------------------------------------------------------------------


def test_an_adapter_is_exported_with_the_base_that_was_made_for_it(
    first: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = copy_policy(find_saved_policy(first, "student"), tmp_path / "out")
    assert exported.base == str(tmp_path / "out" / "base")
    merged = merge_policy(find_saved_policy(first, "student"), tmp_path / "merged")
    assert (merged.base, merged.adapter) == (None, None)
    monkeypatch.chdir("/")
    hidden = cache.rename(cache.with_name("away"))
    try:
        alone = logits(AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out"))
        assert torch.allclose(alone, logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")), atol=1e-4)
        assert not torch.allclose(alone, logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out/base")), atol=1e-4)
        for folder in ("out", "merged"):
            assert AutoTokenizer.from_pretrained(tmp_path / folder).chat_template
    finally:
        hidden.rename(cache)


def test_a_whole_model_is_exported_as_it_is(whole: Path, tmp_path: Path) -> None:
    exported = copy_policy(find_saved_policy(whole, None, 1), tmp_path / "out")
    assert (exported.policy, exported.step, exported.loader) == ("actor", 1, "AutoModelForCausalLM")
    same = load_file(whole / "checkpoints/000001/policies/actor/model.safetensors")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == same.keys()
    with pytest.raises(ScenarioError, match=r"'actor' of .* is a whole model: there is nothing to merge"):
        merge_policy(find_saved_policy(whole, None), tmp_path / "merged")


def test_an_adapter_of_tied_layers_is_not_merged_into_nonsense(first: Path, cache: Path, tmp_path: Path) -> None:
    model = adapter(targets=["lm_head", "q_proj"])
    assert marl.train(validate(duel(model, adapter())), tmp_path / "run")
    with pytest.raises(ValueError, match="cannot be merged: its adapter changes lm_head"):
        merge_policy(find_saved_policy(tmp_path / "run", None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_is_said_and_leaves_nothing(first: Path, tmp_path: Path) -> None:
    for policy, problem in (("teacher", r"trains no policy 'teacher' \(it has no learner"), ("studnt", "did you mean")):
        with pytest.raises(ScenarioError, match=problem):
            find_saved_policy(first, policy)
    with pytest.raises(ValueError, match="has no checkpoint of step 7; there are: 000001"):
        find_saved_policy(first, None, 7)
    with pytest.raises(ScenarioError, match="exists already"):
        copy_policy(find_saved_policy(first, None), tmp_path)
    inside = find_saved_policy(first, None).folder / "out"
    with pytest.raises(ScenarioError, match="lies in the checkpoint"):
        copy_policy(find_saved_policy(first, None), inside)
    assert not inside.exists()
    assert not list(tmp_path.iterdir())


def test_the_command_prints_how_to_load_it(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    what, how = marl_output(monkeypatch, capsys, "export", first, "--out", "out", "--merge").splitlines()
    assert what == f"out: policy student of {first}, step 1"
    exec(how)


def test_a_damaged_checkpoint_is_not_exported(first: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(first, tmp_path / "copy")
    file = copied / "checkpoints/000001/policies/student/adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors has changed"):
        find_saved_policy(copied, None)
