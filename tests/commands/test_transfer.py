"""`marl eval transfer RUN SCENARIO`: what was learnt in one scenario, measured in others."""

import json
from pathlib import Path
from typing import Any

import pytest

from marl.runs.run_folder import RunFolder
from tests.support.run_processes import RunWorkspace
from tests.support.two_game_scenarios import two_games


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, whole: RunWorkspace) -> None:
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))


def test_a_run_is_measured_in_other_scenarios_before_and_after_training(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    other, out = tmp_path / "other.yaml", tmp_path / "figures.json"
    kuhn = two_games()["games"]["kuhn"]
    other.write_text(json.dumps(two_games(games={"kuhn": kuhn, "again": kuhn})))
    own = whole.path / "scenario.yaml"
    status, said, complaint = run("eval", "transfer", whole.run, own, other, "--out", out)
    assert status == 0, complaint
    rows = list(RunFolder(whole.run).rows())
    # In its own scenario the policies are those of the run's first and last evaluation.
    last = next(row for row in rows if row["step"] == RunFolder(whole.run).latest_checkpoint()[0])
    cells = [line.split() for line in said.splitlines()]
    assert ["scenario", "eval/nashconv", f"{rows[0]['eval/nashconv']:.4f}", f"{last['eval/nashconv']:.4f}"] in cells
    assert {cell[1] for cell in cells if cell[0] == "other"} >= {"eval/kuhn/nashconv", "eval/again/nashconv"}
    figures = json.loads(out.read_text())["transfer"]
    assert figures[str(other)]["before"]["eval/kuhn/nashconv"] == pytest.approx(rows[0]["eval/nashconv"])


def test_overrides_change_the_scenarios_of_a_transfer(run: Any, whole: RunWorkspace, tmp_path: Path) -> None:
    own, out = whole.path / "scenario.yaml", tmp_path / "figures.json"
    status, _, complaint = run("eval", "transfer", whole.run, own, "evaluate.every=7", "--out", out)
    assert status == 0, complaint
    assert json.loads(out.read_text())["transfer"][str(own)]["scenario"]["evaluate"]["every"] == 7
    assert "no scenario to measure in" in run("eval", "transfer", whole.run, "game.disguise=1")[2]
    # The words of a disguised game are invented, so a vocabulary of words has none of them.
    refusal = run("eval", "transfer", whole.run, own, "game.disguise=1")[2]
    assert "has a vocabulary without words of" in refusal


def test_a_model_without_the_words_of_another_game_is_not_measured_in_it(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    other = tmp_path / "nim.yaml"
    data = two_games()
    other.write_text(json.dumps(data | {"games": {"nim": data["games"]["nim"]}}))
    status, _, complaint = run("eval", "transfer", whole.run, other)
    assert status != 0
    assert "policies.actor: the run's policy 'actor' has a vocabulary without words of" in complaint
    assert "vocabulary: bytes" in complaint


def test_what_cannot_be_transferred_is_named(run: Any, whole: RunWorkspace, tmp_path: Path) -> None:
    own = whole.path / "scenario.yaml"
    assert f"transfer {own}: {own} is a scenario; give the folder of a run" in run("eval", "transfer", own, own)[2]
    assert "no such file" in run("eval", "transfer", whole.run, tmp_path / "none.yaml")[2]


def test_a_q_network_is_measured_in_games_with_its_moves_alone(run: Any, tmp_path: Path) -> None:
    scenario, folder = Path("scenarios/two_step_q.yaml"), tmp_path / "run"
    short = ("schedule.steps=1", "schedule.group_size=2", "checkpoint.every=1", "evaluate.every=1")
    assert run("train", scenario, *short, "--out", folder)[0] == 0
    status, said, complaint = run("eval", "transfer", folder, scenario)
    assert status == 0, complaint
    assert "eval/nashconv" in said
    refusal = run("eval", "transfer", folder, Path("scenarios/tic_tac_toe_q.yaml"))[2]
    assert "policies.actor: the run's policy 'actor' has no action '1'; it has a, b" in refusal
    refusal = run("eval", "transfer", folder, Path("scenarios/nim_self_play.yaml"))[2]
    assert "the run's policy 'actor' is a Q-network, but the scenario's policy is a language model" in refusal
