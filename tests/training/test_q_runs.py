"""Q-learning in whole runs: what it must solve, what it must not, and that a kill changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Advantage, Deal
from marl.credit_stage.stage import StepCredit
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError, validate
from marl.training.build import build
from marl.training.loop import TrainingLoop
from marl.training.samples import collect_samples
from marl.training.stop_request import StopRequest
from tests.support.q_samples import scenario
from tests.support.run_processes import RunWorkspace, SignalTrigger, metric_lines, outcome, train_to_end

UNIFORM = {"exploration": {"end": 1.0}}
"""All moves are random while it learns, as where QMIX's paper plays the two-step game."""


def trained(data: dict[str, Any], folder: Path) -> dict[str, float]:
    """The last row of a run; exact figures are of greedy play."""
    checked, home = validate(data, "test"), RunFolder(folder / "run")
    home.create(checked)
    TrainingLoop(build(checked), home, [])(StopRequest())
    return json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])


def two_step(seed: int, steps: int, mixer: str) -> dict[str, Any]:
    return scenario({"kind": "two_step"}, ["a", "b"], steps, seed, mixer=mixer, updates=4, replay=500, **UNIFORM)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("mixer", "reached"), [("qmix", 8.0), ("vdn", 7.0)])
def test_in_the_two_step_game_qmix_takes_8_and_vdn_7(mixer: str, reached: float, seed: int, tmp_path: Path) -> None:
    assert trained(two_step(seed, 200, mixer), tmp_path)["eval/value/agent_0"] == reached


def test_exploration_by_roles_that_always_play_the_best_move_is_refused() -> None:
    data = scenario({"kind": "two_step"}, ["a", "b"], steps=1)
    data["roles"]["player"]["sampling"] = {"temperature": 0}
    with pytest.raises(ScenarioError, match=r"learner.exploration: has no effect, because player plays with temp"):
        validate(data)
    data["policies"]["actor"]["learner"]["exploration"] = {"start": 0, "end": 0}
    assert validate(data)


def test_a_mixer_has_a_seat_for_each_agent_of_the_scenario_whoever_plays_first(tmp_path: Path) -> None:
    data = scenario({"kind": "two_step"}, [*"123", "a", "b"], steps=4, mixer="qmix", batch=2)
    seats = {"player_0": "player", "player_1": "player"}
    nim = {"game": {"kind": "nim"}, "seats": seats}
    two_step = {"game": data.pop("game"), "seats": data.pop("seats")}
    # Each step plays one start of one of the two games, which have different agents.
    data |= {"games": {"nim": nim, "two_step": two_step}, "evaluate": {}}
    data["schedule"] |= {"groups": 1, "group_size": 2}
    row = trained(data, tmp_path)
    assert row["step"] == 4
    games = {
        name.split("/")[1] for line in metric_lines(tmp_path / "run") for name in json.loads(line) if "game/" in name
    }
    assert games == {"nim", "two_step"}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_in_the_climbing_game_vdn_settles_for_the_5_that_an_additive_fit_prefers(seed: int, tmp_path: Path) -> None:
    game = {"kind": "matrix", "table": "climbing"}
    data = scenario(game, ["a", "b", "c"], 200, seed, mixer="vdn", updates=4, replay=500, **UNIFORM)
    assert trained(data, tmp_path)["eval/value/agent_0"] == 5


@pytest.mark.slow
@pytest.mark.one_in(3)
def test_independent_q_learning_plays_nim_perfectly_after_self_play(tmp_path: Path) -> None:
    data = scenario({"kind": "nim"}, ["1", "2", "3"], 300, gamma=1.0, updates=2, exploration={"end": 0.3, "steps": 200})
    data["seats"] = {"player_0": "player", "player_1": "player"}
    data["schedule"]["groups"], data["schedule"]["group_size"] = 16, 1
    data["evaluate"] = {"every": 300, "optimal": True, "against": {"random": 100}}
    last = trained(data, tmp_path)
    assert last["eval/optimal"] > 0.9
    assert last["eval/random/win"] > 0.85


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("mixer", "history"), [("qmix", "fresh"), ("none", "append")])
def test_a_run_that_is_killed_and_resumed_is_the_run_that_was_not(mixer: str, history: str, tmp_path: Path) -> None:
    data = two_step(0, 9, mixer)
    data["policies"]["actor"]["learner"] |= {"batch": 16, "replay": 40, "target_every": 5}
    data["roles"]["player"]["history"] = history
    data |= {"checkpoint": {"every": 2}}
    data["evaluate"] = {"every": 3, "against": {"random": 4}}
    whole = train_to_end(tmp_path / "whole", data)
    desk = RunWorkspace(tmp_path / "killed", data)
    for kill in (
        SignalTrigger("call", "QLearner._gradient_step", 6),
        SignalTrigger("call", "Run.publish", 5),
        SignalTrigger("call", "Episode.play_agent_answer", 60),
    ):
        assert desk.train("--resume", "auto", kill=kill) == -9, desk.take_output()
    assert desk.train("--resume", "auto") == 0, desk.take_output()
    assert outcome(desk.run) == outcome(whole.run)


def test_a_sample_holds_what_its_agent_is_paid_until_its_next_turn(tmp_path: Path) -> None:
    data = two_step(0, 2, "qmix")
    run = build(validate(data, "test"))
    [played] = run.simulator.play([Deal("e", "g", 0, run.scenario.seats)])
    judged = StepCredit({}, {turn.id: Advantage(0.0) for turn in played.turns}, {})
    samples = collect_samples([played], judged, run.scenario.roles, {})["actor"]
    paid = 0.0 if not played.rewards else played.returns["agent_0"]
    assert [sample.rewards for sample in samples] == [(), (), *[((3, paid),)] * 2] if paid else [()] * 4
    assert isinstance(played, Trajectory)
    assert {turn.request.purpose for turn in played.turns} == {"train"}
    [measured] = run.simulator.play([Deal("e", "g", 0, run.scenario.seats, "eval")])
    assert {(turn.request.purpose, turn.completion.logprobs) for turn in measured.turns} == {("eval", (0.0,))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"kind": "transformers"}}, "engine: 'transformers' works with a language model, but model"),
        ({"model": {"kind": "tiny"}}, "works with a Q-network, but model 'tiny' is a language model; choices: .*grpo"),
        ({"learner": {"kind": "grpo"}}, "learner: 'grpo' works with a language model, but model"),
    ],
)
def test_parts_that_work_with_other_weights_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    data = two_step(0, 2, "qmix")
    data["policies"]["actor"] |= changes
    with pytest.raises(ValueError, match=message):
        validate(data, "test")
