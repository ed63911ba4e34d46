"""`marl eval`: runs, untrained scenarios, folders of models, and files of figures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from marl.commands.eval.evaluate import EvaluatedPolicies, evaluate_policies
from marl.commands.simulators import simulator_with_random_players
from marl.core.graph import read_trajectories
from marl.runs.checksums import _cached_checksum as digests
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, load, validate
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, whole: RunWorkspace) -> None:
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))


def figures(said: str) -> dict[str, str]:
    """Name -> value, as printed."""
    lines = [line.split(maxsplit=1) for line in said.splitlines()]
    return {line[0]: line[1].strip() for line in lines if line[0].startswith("eval/")}


def row(run: Path, step: int) -> dict[str, Any]:
    return next(row for row in RunFolder(run).rows() if row["step"] == step)


def test_a_scenario_is_measured_as_its_run_was_before_the_first_step(run: Any, whole: RunWorkspace) -> None:
    status, said, _ = run("eval", whole.path / "scenario.yaml", "--against", "random", "--episodes", 6)
    assert status == 0
    before = row(whole.run, 0)
    told = figures(said)
    assert told["eval/random/mean"].split()[0] == f"{before['eval/random/mean']:.4f}"
    assert told["eval/nashconv"] == f"{before['eval/nashconv']:.4f}"


def test_the_folder_of_a_model_sits_where_an_override_puts_it(run: Any, whole: RunWorkspace) -> None:
    last = RunFolder(whole.run).latest_checkpoint()[0]
    model = RunFolder(whole.run).verified_policies_folder(last) / "actor"
    status, said, _ = run("eval", whole.path / "scenario.yaml", f"policies.actor.model={model}")
    assert status == 0
    assert figures(said)["eval/nashconv"] == f"{row(whole.run, last)['eval/nashconv']:.4f}"


def test_the_folder_of_a_model_alone_is_no_run_and_the_message_says_how_to_measure_it(
    run: Any, whole: RunWorkspace
) -> None:
    model = RunFolder(whole.run).verified_policies_folder(RunFolder(whole.run).latest_checkpoint()[0]) / "actor"
    status, _, complaint = run("eval", model)
    assert status == 2
    assert complaint == (
        f"marl: {model}: a model's folder, no run; say for which policy of which scenario it is to speak: "
        f"marl eval run SCENARIO policies.NAME.model={model}\n"
    )


def test_figures_are_written_with_all_that_they_depend_on(run: Any, whole: RunWorkspace, tmp_path: Path) -> None:
    out = tmp_path / "new" / "figures.json"
    status, said, _ = run("eval", whole.run, "--out", out, "--against", "random", "--episodes", 1)
    assert status == 0
    assert said.splitlines()[-1].startswith(f"{out}: ")
    written = json.loads(out.read_text(), parse_constant=pytest.fail)
    last = RunFolder(whole.run).latest_checkpoint()[0]
    assert (written["measured"], written["checkpoint"], written["seed"]) == (str(whole.run), last, 0)
    assert written["command"][:2] == ["marl", "eval"]
    assert {"torch", "transformers"} <= written["packages"].keys()
    assert written["figures"]["eval/nashconv"] == row(whole.run, last)["eval/nashconv"]
    # One episode has a mean without bounds.
    assert (written["figures"]["eval/random/episodes"], written["figures"]["eval/random/mean_low"]) == (1.0, None)
    assert validate(written["scenario"]) == RunFolder(whole.run).scenario()


def test_each_file_of_the_checkpoint_is_verified_by_reading_it_once(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    # A copy, as checksums of files that have not changed are remembered.
    copied = Path(shutil.copytree(whole.run, tmp_path / "run"))
    policies = RunFolder(whole.run).verified_policies_folder(RunFolder(whole.run).latest_checkpoint()[0])
    files = [file for file in policies.rglob("*") if file.is_file()]
    before = digests.cache_info().misses
    assert run("eval", copied)[0] == 0
    assert digests.cache_info().misses - before == len(files)


def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_played(run: Any, whole: RunWorkspace) -> None:
    status, said, complaint = run("eval", whole.run, "--out", whole.run / "scenario.yaml" / "f.json")
    assert (status, said) == (1, "")
    assert "scenario.yaml/f.json cannot be written" in complaint


def test_a_run_takes_no_overrides(run: Any, whole: RunWorkspace) -> None:
    status, _, complaint = run("eval", whole.run, "schedule.seed=3")
    assert (status, complaint.endswith("is a run, which is measured as it is: leave 'schedule.seed=3' out\n")) == (
        2,
        True,
    )


def test_a_game_without_figures_is_refused_before_weights_are_loaded() -> None:
    scenario = load(SCENARIOS / "taboo.yaml")
    policies = EvaluatedPolicies(scenario, None, lambda: pytest.fail("weights were loaded"))
    with pytest.raises(ScenarioError, match=r"nothing to measure: game 'taboo' .*: --against random \| RUN"):
        evaluate_policies(policies, None, 1)
    with pytest.raises(ValueError, match="no opponent 'rndom'"):
        evaluate_policies(policies, "rndom", 1)


def test_random_play_can_be_recorded_and_learnt_from_as_the_message_says(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    file, out = whole.path / "scenario.yaml", tmp_path / "games.jsonl.zst"
    recorded = f"experience={{kind: recorded, path: {out}}}"
    status, _, complaint = run("check", file, recorded)
    assert status == 2
    assert f"`marl play SCENARIO experience=rollouts --episodes 100 --out {out}` writes one" in complaint
    assert run("play", file, "experience=rollouts", "--random", "--episodes", 4, "--out", out)[0] == 0
    assert len(list(read_trajectories(out))) == 4
    assert run("check", file, recorded)[0] == 0


def test_a_seed_decides_what_policies_say(run: Any, whole: RunWorkspace) -> None:
    said = {seed: run("play", whole.run, "--episodes", 3, "--seed", seed)[1] for seed in (1, 2)}
    assert said[1] == run("play", whole.run, "--episodes", 3, "--seed", 1)[1]
    assert said[1] != said[2]


def test_random_players_leave_seats_that_answer_by_rule_alone() -> None:
    scenario = load(SCENARIOS / "solver_critic.yaml")
    assert type(simulator_with_random_players(scenario).engines["checker"]).__name__ == "WorkerPoolEngine"
