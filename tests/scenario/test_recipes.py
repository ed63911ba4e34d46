"""Recipes: scenarios that build on each other's output folders, and one that goes round and round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import marl
from marl.engines.reward_model.settings import RewardModelConfig
from marl.evaluation.suite_play import suite_metrics
from marl.scenario.load import ScenarioError
from tests.support.command_line import run_marl
from tests.support.paths import SCENARIOS

RECIPES = SCENARIOS / "recipes"
RLHF = sorted(RECIPES.glob("rlhf_*.yaml"))
_TINY = ("hidden=16", "layers=1", "warm_up.steps=30", "warm_up.episodes=128", "warm_up.batch=32", "warm_up.lr=0.01")
TEAM = ("ones", "tens", "solver", "critic")
SMALLER = [f"policies.solver.model.{change}" for change in _TINY]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Path) -> Path:
    """Runs are kept in ./runs, as the recipes expect."""
    monkeypatch.setenv("MARL_CACHE", str(made))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def short(steps: int, groups: int = 8) -> list[str]:
    return [f"schedule.steps={steps}", f"schedule.groups={groups}", f"checkpoint.every={steps}"]


def trained(file: Path, *changes: str) -> list[dict[str, Any]]:
    """As `marl train FILE` would, only smaller."""
    run = Path("runs") / file.stem
    assert marl.train(marl.load(file, changes), run)
    return rows(run)


def test_the_steps_of_rlhf_are_three() -> None:
    assert [file.stem for file in RLHF] == ["rlhf_1_sft", "rlhf_2_reward", "rlhf_3_ppo"]


def test_a_step_that_comes_too_early_says_which_is_missing(here: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        marl.load(RLHF[2])
    runs = here / "runs"
    assert str(caught.value).splitlines()[1:] == [
        f"  policies.reward_model.engine.path: no run in '{runs}/rlhf_2_reward'; "
        f"train it first: marl train SCENARIO --out {runs}/rlhf_2_reward",
        f"    (run: rlhf_2_reward is relative to {runs}, where `marl train` puts runs; "
        "a folder elsewhere is written with a slash)",
        f"  policies.solver.model.run: no run in '{runs}/rlhf_1_sft'; "
        f"train it first: marl train SCENARIO --out {runs}/rlhf_1_sft",
        f"    (run: rlhf_1_sft is relative to {runs}, where `marl train` puts runs; "
        "a folder elsewhere is written with a slash)",
    ]


def test_rlhf_runs_end_to_end_on_its_own_output_folders() -> None:
    trained(RLHF[0], *SMALLER, *short(2), "evaluate.held_out=4", "evaluate.every=2")
    rated = trained(
        RLHF[1], *short(3), "policies.solver.learner.held_out_every=1", "policies.solver.learner.held_out=0.4"
    )
    assert any("policy/solver/held_out_accuracy" in row for row in rated)
    last = trained(RLHF[2], *short(2), "evaluate.held_out=4", "evaluate.every=2")[-1]
    assert {"eval/held_out/success", "eval/held_out/reward", "policy/solver/value_loss"} <= last.keys()
    assert last["episode/return/solver"] == pytest.approx(last["episode/measure/reward"])
    # What was only rated never changed, and is no language model now.
    engine = marl.load(RLHF[2]).policies["reward_model"].engine
    assert isinstance(engine, RewardModelConfig)
    assert engine.model_folder().parts[-4:] == ("checkpoints", "000003", "policies", "solver")


def test_an_interrupted_last_step_goes_on_exactly(here: Path) -> None:
    trained(RLHF[0], *SMALLER, *short(1), "evaluate.held_out=4")
    trained(RLHF[1], *short(1))
    changes = [*short(4, groups=2), "evaluate.held_out=4", "checkpoint.every=2", "checkpoint.keep=9"]
    scenario = marl.load(RLHF[2], changes)
    marl.train(scenario, here / "whole")
    marl.train(scenario, here / "again")
    for gone in ("000004",):
        for file in sorted((here / "again" / "checkpoints" / gone).rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        (here / "again" / "checkpoints" / gone).rmdir()
    assert marl.train(scenario, here / "again", resume="auto")
    weights = [
        here / run / "checkpoints" / "000004" / "policies" / "solver" / "model.safetensors"
        for run in ("whole", "again")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_iterative_recipe_evaluates_trains_and_saves_round_after_round() -> None:
    changes = ["schedule.steps=6", "schedule.groups=8", "policies.solver.update_every=2", "evaluate.every=2"]
    saving = ["checkpoint.every=2", "checkpoint.keep=9", "evaluate.held_out=8", "evaluate.patience=null"]
    results = trained(RECIPES / "iterative_dpo.yaml", *SMALLER, *changes, *saving)
    assert [row["step"] for row in results if "eval/held_out/success" in row] == [0, 2, 4, 6]
    assert [row["step"] for row in results if "policy/solver/accuracy" in row] == [2, 4, 6]
    run = Path("runs/iterative_dpo/checkpoints")
    assert [folder.name for folder in sorted(run.glob("0*"))] == ["000002", "000004", "000006"]


def test_a_student_of_nim_comes_nearer_to_the_policy_of_the_run_before() -> None:
    smaller = ["hidden=16", "warm_up.steps=10", "warm_up.episodes=64", "warm_up.batch=32"]
    trained(SCENARIOS / "nim_self_play.yaml", *short(1, groups=2), *(f"policies.actor.model.{c}" for c in smaller))
    changes = [*short(8), *(f"policies.student.model.{change}" for change in smaller), "evaluate.every=8"]
    results = trained(RECIPES / "distillation.yaml", *changes, "policies.student.model.seed=1")
    divergences = [row["policy/student/kl_teacher"] for row in results if row["step"]]
    assert divergences[-1] < divergences[0]


def test_a_team_is_distilled_into_one_model_and_this_model_into_a_team() -> None:
    smaller = ("hidden=16", "layers=1", "warm_up.steps=10", "warm_up.episodes=64", "warm_up.batch=32")
    small_team = [f"policies.{role}.model.{change}" for role in TEAM for change in smaller]
    small_model = [f"policies.team.model.{change}" for change in smaller]
    plan = [*short(6), "evaluate.every=6", "evaluate.held_out=4"]
    trained(RECIPES / "distillation_team_1_team.yaml", *small_team, *plan)
    one = trained(RECIPES / "distillation_team_2_into_one.yaml", *small_model, *plan)
    team = trained(RECIPES / "distillation_team_3_into_team.yaml", *small_team, *plan)
    for results, students in ((one, ("team",)), (team, TEAM)):
        for student in students:
            divergences = [row[f"policy/{student}/kl_teacher"] for row in results if row["step"]]
            assert divergences[-1] < divergences[0]


@pytest.mark.slow
def test_a_model_learns_offline_from_two_games_and_takes_the_suite(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from marl.commands.eval.suite import read_suite, suite_player

    (here / "runs").mkdir()
    for game in ("nim", "kuhn"):
        out = here / "runs" / f"random_{game}.jsonl.zst"
        file = SCENARIOS / f"{game}_self_play.yaml"
        assert run_marl(monkeypatch, capsys, "play", file, "--random", "--episodes", 32, "--out", out)[0] == 0
    files = {f"experience.games.{game}.path": f"{here}/runs/random_{game}.jsonl.zst" for game in ("nim", "kuhn")}
    changes = [*short(2), "evaluate.every=2", *(f"{field}={file}" for field, file in files.items())]
    results = trained(RECIPES / "offline_awr.yaml", *changes)
    last = results[-1]
    assert {"policy/actor/value_loss", "game/nim/episode/count", "game/kuhn/episode/count"} <= last.keys()
    suite = read_suite(SCENARIOS / "suites" / "small_games.yaml").model_copy(update={"problems": 4, "samples": 2})
    figures = suite_metrics(suite, suite_player("runs/offline_awr", suite).play_suite(suite))
    assert {figures[f"eval/{name}/problems"] for name in suite.tests} == {4}
    assert all(0 <= figures[f"eval/{name}/unreadable"] <= 1 for name in suite.tests)


@pytest.mark.slow
def test_rlhf_raises_what_nobody_is_paid_for() -> None:
    """The reward model as committed, for a worse one is only pleased; the rest shorter."""
    trained(RLHF[0])
    rated = trained(RLHF[1])
    report = [row["policy/solver/held_out_accuracy"] for row in rated if "policy/solver/held_out_accuracy" in row]
    results = trained(RLHF[2], "schedule.steps=20", "evaluate.every=20", "checkpoint.every=20")
    success = [row["eval/held_out/success"] for row in results if "eval/held_out/success" in row]
    assert report[-1] > 0.85
    assert success[-1] > success[0]
