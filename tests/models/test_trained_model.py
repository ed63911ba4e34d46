"""Weights that another run has learnt, by the run's folder."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import marl
from marl.models.pretrained import Pretrained
from marl.runs.run_folder import RunFolder
from marl.runs.trained_model import Trained, TrainedPolicyRef
from tests.support.small_team_scenarios import small_scenario
from tests.support.transformers_engines import CONTEXT

# One process makes the run that all share.
pytestmark = pytest.mark.xdist_group("trained_model")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, made: Path) -> Path:
    """Four steps of a small team; measured at 0, 2 and 4."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        changes = ("checkpoint.every=2", "checkpoint.keep=9", "evaluate.every=2", "evaluate.keep_best=success")
        marl.train(small_scenario("train_solver_only", *changes, steps=4), folder)
    return folder


def of(run: Path, **changes: Any) -> TrainedPolicyRef:
    return TrainedPolicyRef(**{"run": str(run), "policy": "solver", **changes})


def refusal(reference: TrainedPolicyRef, *, publishes: bool = True) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        reference.folder(is_language_model=publishes)
    return str(caught.value)


def test_the_newest_weights_of_a_run_are_found(run: Path) -> None:
    assert of(run).folder(is_language_model=True) == run / "checkpoints" / "000004" / "policies" / "solver"
    assert of(run, step=2).folder(is_language_model=True).parts[-3] == "000002"


def test_the_best_weights_are_those_of_the_runs_own_keep_best(run: Path) -> None:
    from marl.training.restore import best_checkpoint_step

    try:
        best = best_checkpoint_step(run)
    except ValueError:
        assert refusal(of(run, step="best")) == (
            f"run '{run}' was best before it had learnt anything (eval/held_out/success); give a step, or `latest`"
        )
    else:
        assert of(run, step="best").folder(is_language_model=True).parts[-3] == f"{best:06d}"


def test_they_are_an_ordinary_model(run: Path) -> None:
    settings = Trained(run=str(run), policy="solver", dtype="bfloat16", device="cpu")
    assert not [*settings.unmet_requirements()]
    model = settings.prepare(CONTEXT).model()
    saved = Pretrained(path=str(run / "checkpoints" / "000004" / "policies" / "solver"))
    same = saved.prepare(CONTEXT).model()
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.get_input_embeddings().weight, same.get_input_embeddings().weight.bfloat16())


def test_weights_of_a_tiny_model_are_prompted_like_the_tiny_model_and_not_like_a_chat_model(run: Path) -> None:
    trained = Trained(run=str(run), policy="solver")
    assert not trained.understands_instructions
    assert Trained(run=f"{run}/nowhere", policy="solver").understands_instructions


def test_a_run_that_claims_to_be_trained_from_itself_is_read_once(run: Path, tmp_path: Path) -> None:
    own = shutil.copytree(run, tmp_path / "own")
    text = (own / "scenario.yaml").read_text()
    settings = yaml.safe_load(text)
    settings["policies"]["solver"]["model"] = {"kind": "trained", "run": str(own), "policy": "solver"}
    (own / "scenario.yaml").write_text(yaml.safe_dump(settings))
    assert RunFolder(own).scenario().policies["solver"].model == Trained(run=str(own), policy="solver")


def test_runs_that_claim_to_be_trained_from_each_other_are_read_once_each(tmp_path: Path) -> None:
    runs = [tmp_path / f"run{number}" for number in range(8)]
    for folder in runs:
        (folder / "checkpoints" / "000001").mkdir(parents=True)
        models = {f"p{i}": {"kind": "trained", "run": str(run), "policy": "p0"} for i, run in enumerate(runs)}
        scenario = {
            "game": {"kind": "nim"},
            "seats": {"player_0": "p0", "player_1": "p1"},
            "roles": {name: {"kind": "player", "policy": name} for name in models},
            "policies": {name: {"model": model, "learner": {"kind": "grpo"}} for name, model in models.items()},
            "schedule": {"steps": 1, "groups": 1, "group_size": 2},
        }
        (folder / "scenario.yaml").write_text(json.dumps(scenario))
    began = time.process_time()
    assert "roles.p2: no seat uses this role" in refusal(of(runs[0], policy="p0"))
    assert time.process_time() - began < 10


def test_what_is_not_there_is_said_with_the_way_out(run: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    expected = f"no run in '{none}'; train it first: marl train SCENARIO --out {none}"
    assert refusal(of(none)) == expected
    assert [*Trained(run=str(none), policy="solver").unmet_requirements()] == [f"run: {expected}"]
    with pytest.raises(ValueError, match=f"policy 'actor': model '{none}': no run in"):
        Trained(run=str(none), policy="solver").prepare(CONTEXT)


def test_a_wrong_policy_or_step_is_named_with_the_choices(run: Path) -> None:
    assert refusal(of(run, policy="solvr")) == (
        f"run '{run}' trains no policy 'solvr'; did you mean 'solver'? choices: solver"
    )
    assert refusal(of(run, step=3)) == f"run '{run}' has no checkpoint of step 3; there are: 000002, 000004"


def test_a_language_model_is_no_reward_model(run: Path) -> None:
    assert refusal(of(run), publishes=False) == (
        f"policy 'solver' of run '{run}' has learnt to be a language model, not a reward model"
    )
