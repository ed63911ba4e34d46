"""`marl best-response`: the scenarios it makes, and a real learner against a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl.commands.best_response import BestResponseTraining
from marl.commands.eval.exploitability import tabulate_strategy
from marl.evaluation.evaluate import Evaluator
from marl.evaluation.game_tree import nash_conv
from marl.runs.checkpoint import CheckpointError
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.training.build import build
from tests.support.paths import SCENARIOS
from tests.support.run_processes import RunWorkspace


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, whole: RunWorkspace) -> None:
    monkeypatch.setenv("MARL_CACHE", str(whole.path / "cache"))


def respond(target: object, folder: Path, *seats: str, policy: str | None = None) -> BestResponseTraining:
    return BestResponseTraining.from_target(str(target), folder, policy=policy, seats=seats, game=None)


def test_a_learner_takes_one_seat_and_the_run_stays_as_it_was_in_the_other(whole: RunWorkspace, tmp_path: Path) -> None:
    last = RunFolder(whole.run).latest_checkpoint()[0]
    scenario = respond(whole.run, tmp_path).responder_scenario("player_1", 5, 3, ["schedule.groups=2"])
    assert scenario.seats == {"player_0": "player_0", "player_1": "responder"}
    assert {name: role.policy for name, role in scenario.roles.items()} == {
        "player_0": "actor",
        "responder": "responder",
    }
    frozen, learner = scenario.policies["actor"], scenario.policies["responder"].learner
    assert frozen.learner is None
    assert frozen.model is not None
    assert frozen.model.model_dump(include={"kind", "run", "step"}) == {
        "kind": "trained",
        "run": str(whole.run),
        "step": last,
    }
    assert learner is not None
    anchors = learner.model_dump(include={"proximal", "reference"})
    assert anchors == {"proximal": None, "reference": None}
    assert learner.model_dump()["magnet"]["final"] == 0.0
    assert (scenario.schedule.steps, scenario.schedule.seed, scenario.schedule.groups) == (5, 3, 2)


@pytest.mark.one_in(3)
def test_who_never_learnt_is_answered_by_a_policy_that_can(tmp_path: Path) -> None:
    file = SCENARIOS / "kuhn_frozen_opponent.yaml"
    response = respond(file, tmp_path)
    assert response.responder_scenario("player_1", 1, 0, []).policies["responder"].learner is not None
    assert set(response.responder_scenario("player_0", 1, 0, []).policies) == {"teacher", "responder"}


def test_a_frozen_tiny_model_is_the_one_that_its_own_scenario_makes(tmp_path: Path) -> None:
    response = respond(SCENARIOS / "kuhn_self_play.yaml", tmp_path)
    tree, strategy = tabulate_strategy(response.frozen.scenario, response.frozen.entrants[0])
    run = build(response.responder_scenario("player_1", 1, 0, []))
    # Before it learns anything, the learner is the frozen player, too.
    figures = Evaluator(run.scenario, run.simulator)(0)
    assert figures["eval/nashconv"] == pytest.approx(nash_conv(tree, strategy), abs=1e-6)


@pytest.mark.parametrize(
    ("target", "seat", "says"),
    [
        ("RUN", "player_2", "--seat player_2: nobody learns there; "),
        ("RUN@all", "player_0", "players; a best response is to one: name its step"),
        ("RUN@000099", "player_0", "there is none of this name; checkpoints: "),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    whole: RunWorkspace, tmp_path: Path, target: str, seat: str, says: str
) -> None:
    with pytest.raises((ScenarioError, CheckpointError), match=says):
        respond(target.replace("RUN", str(whole.run)), tmp_path, seat)
    assert not list(tmp_path.iterdir())


def test_the_command_trains_goes_on_and_writes_bounds_with_intervals(
    run: Any, whole: RunWorkspace, tmp_path: Path
) -> None:
    out = tmp_path / "responses"
    command = ("best-response", whole.run, "--steps", 2, "--episodes", 6, "--out", out, "schedule.groups=2")
    status, said, complaint = run(*command)
    assert status == 0, complaint
    rows = {seat: len(list(RunFolder(out / seat).rows())) for seat in ("player_0", "player_1")}
    found = json.loads((out / "best_response.json").read_text())["figures"]
    both = found["best_response/player_0/gain"] + found["best_response/player_1/gain"]
    assert found["best_response/nashconv"] == pytest.approx(both)
    assert found["best_response/exploitability"] == pytest.approx(both / 2)
    assert found["best_response/nashconv_low"] <= both <= found["best_response/nashconv_high"]
    measured = {row["step"]: row.get("eval/nashconv") for row in RunFolder(whole.run).rows()}
    assert found["exact/nashconv"] == pytest.approx(measured[RunFolder(whole.run).latest_checkpoint()[0]])
    assert "lower bounds" in said
    # Again: the runs are complete, so nothing is trained, and the same starts give the same figures.
    assert run(*command)[0] == 0
    assert rows == {seat: len(list(RunFolder(out / seat).rows())) for seat in rows}
    assert json.loads((out / "best_response.json").read_text())["figures"] == found


def test_a_search_bounds_a_run_without_training(run: Any, whole: RunWorkspace, tmp_path: Path) -> None:
    out = tmp_path / "searched"
    command = ("best-response", whole.run, "--search", 300, "--episodes", 20, "--out", out)
    status, said, complaint = run(*command)
    assert status == 0, complaint
    assert "lower bounds" in said
    assert [file.name for file in out.iterdir()] == ["best_response_by_search.json"]
    found = json.loads((out / "best_response_by_search.json").read_text())
    assert found["search"] == 300
    assert found["figures"]["best_response/nashconv_low"] <= found["figures"]["best_response/nashconv_high"]
    status, _, complaint = run(*command, "schedule.groups=2")
    assert status != 0
    assert "--search 300 trains nothing: leave 'schedule.groups=2' out" in complaint
