"""Policies that learn every so many steps, or take turns."""

import hashlib
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from marl.core.config import Sampling
from marl.core.state import load_state, save_state
from marl.core.types import Advantage, Reading, Sample
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import PolicyConfig
from marl.training.update_schedule import UpdateSchedule
from tests.support.run_processes import metric_lines, outcome
from tests.support.solver_critic_game import policies, quiz_scenario, train_in_process, train_until_crash

LEARNER = {"kind": "grpo", "lr": 3e-3}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))


def policy(**settings: Any) -> PolicyConfig:
    return PolicyConfig.model_validate({"model": {"kind": "tiny"}, "learner": LEARNER, **settings})


def sample(name: str) -> Sample:
    """One with everything that a sample can have."""
    advantage = Advantage(0.1 + 0.2, (0.25, -math.inf), (1 / 3,))
    reading = Reading((-0.5,), (0.125,), None, torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    said = ((1, 2), (3, 4), (-0.1, -math.inf))
    return Sample((name, 3), "a", "r", "g", 1, "terminated", *said, Sampling(top_k=2), (4, 5), 0.7, advantage, reading)


def due(pace: UpdateSchedule, step: int, **batches: list[Sample]) -> dict[str, list[str]]:
    learning = pace(step, batches)
    return {name: [sample.id[0] for sample in samples] for name, samples in learning.items()}


def test_samples_wait_until_it_is_time() -> None:
    pace = UpdateSchedule({"often": policy(), "seldom": policy(update_every=3), "never": policy(learner=None)})
    batches = [{"often": [sample(f"o{i}")], "seldom": [sample(f"s{i}")], "never": [sample("n")]} for i in range(4)]
    assert [due(pace, step, **batch) for step, batch in enumerate(batches)] == [
        {"often": ["o0"]},
        {"often": ["o1"]},
        {"often": ["o2"], "seldom": ["s0", "s1", "s2"]},
        {"often": ["o3"]},
    ]


def test_a_policy_that_sits_out_learns_nothing_of_those_steps() -> None:
    pace = UpdateSchedule({"one": policy(alternate={"period": 4, "start": 2, "steps": 2}, update_every=2)})
    told = [due(pace, step, one=[sample(f"{step}")]) for step in range(8)]
    assert told == [{}, {}, {}, {"one": ["2", "3"]}, {}, {}, {}, {"one": ["6", "7"]}]


def test_a_policy_that_said_nothing_learns_from_nothing_when_it_is_time() -> None:
    assert UpdateSchedule({"one": policy()})(0, {}) == {"one": []}


def test_what_waits_comes_back_from_a_checkpoint_as_it_was(tmp_path: Path) -> None:
    settings = {"one": policy(update_every=3)}
    pace, again = UpdateSchedule(settings), UpdateSchedule(settings)
    waiting = sample("first")
    assert pace(0, {"one": [waiting]}) == {}
    save_state(tmp_path, pace.state_dict())
    again.load_state_dict(load_state(tmp_path))
    again(1, {})
    [back] = again(2, {})["one"]
    assert back.reading is not None
    assert waiting.reading is not None
    assert back.reading.hidden is not None
    assert waiting.reading.hidden is not None
    assert torch.equal(back.reading.hidden, waiting.reading.hidden)
    bare = [replace(each, reading=replace(each.reading, hidden=None)) for each in (back, waiting) if each.reading]
    assert bare[0] == bare[1]


@pytest.mark.parametrize(
    ("settings", "steps", "updates"),
    [
        ({}, 300, 300),
        ({"update_every": 4}, 300, 75),
        ({"update_every": 4}, 303, 75),
        ({"alternate": {"period": 20, "start": 0, "steps": 5}}, 300, 75),
        ({"alternate": {"period": 20, "start": 5, "steps": 15}}, 310, 230),
        ({"alternate": {"period": 20, "start": 5, "steps": 15}, "update_every": 5}, 300, 45),
        ({"learner": None}, 300, 0),
    ],
)
def test_schedules_count_the_updates_that_a_policy_makes(settings: dict, steps: int, updates: int) -> None:
    assert policy(**settings).count_updates(steps) == updates


# --- runs ------------------------------------------------------------------------------------------------------------


def every_step(**changes: dict[str, Any]) -> dict[str, Any]:
    """A run with a checkpoint a step: policy -> changes."""
    steady = {name: {"learner": LEARNER} | changes.get(name, {}) for name in ("solver", "critic")}
    return quiz_scenario(evaluate={}, checkpoint={"every": 1, "keep": 99}, policies=policies(**steady))


def weights(folder: Path, policy: str) -> list[str]:
    """A hash of the policy's weights in each checkpoint."""
    files = sorted(folder.glob(f"checkpoints/*/policies/{policy}/model.safetensors"))
    return [hashlib.sha256(b"".join(t.numpy().tobytes() for t in load_file(f).values())).hexdigest() for f in files]


def changed(folder: Path, policy: str) -> list[bool]:
    """Whether the weights moved, from each checkpoint to the next."""
    hashes = weights(folder, policy)
    return [later != earlier for earlier, later in pairwise(hashes)]


def logged(folder: Path, name: str) -> dict[int, float]:
    return {row["step"]: row[name] for row in map(json.loads, metric_lines(folder)) if name in row}


def test_a_policy_learns_from_several_steps_at_once_and_says_nothing_in_between(tmp_path: Path) -> None:
    assert train_in_process(
        tmp_path, every_step(solver={"update_every": 3, "learner": LEARNER | {"schedule": "linear"}})
    )
    assert changed(tmp_path, "solver") == [False, True, False, False, False]
    assert changed(tmp_path, "critic") == [True] * 5
    said, samples = logged(tmp_path, "role/solver/turns"), logged(tmp_path, "policy/solver/samples")
    assert samples == {3: said[1] + said[2] + said[3], 6: said[4] + said[5] + said[6]}
    assert logged(tmp_path, "policy/solver/lr") == {3: 3e-3, 6: 0.0}, "two updates, linear"


def test_policies_take_turns(tmp_path: Path) -> None:
    turns = {
        "solver": {"alternate": {"period": 3, "start": 0, "steps": 1}},
        "critic": {"alternate": {"period": 3, "start": 1, "steps": 2}},
    }
    assert train_in_process(tmp_path, every_step(**turns))
    assert changed(tmp_path, "solver") == [False, False, True, False, False]
    assert changed(tmp_path, "critic") == [True, True, False, True, True]
    assert [*logged(tmp_path, "policy/solver/loss")] == [1, 4]
    assert [*logged(tmp_path, "policy/critic/loss")] == [2, 3, 5, 6]
    versions = json.loads((tmp_path / "checkpoints" / "000006" / "state" / "state.json").read_text())["versions"]
    assert versions == {"solver": 4, "critic": 6}


@pytest.mark.one_in(3)
def test_a_run_that_dies_while_samples_wait_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    scenario = every_step(solver={"update_every": 4}, critic={"update_every": 2})
    assert train_in_process(tmp_path / "whole", scenario)
    for step in (2, 4):
        train_until_crash(tmp_path / f"{step}", scenario, after=step)
        assert train_in_process(tmp_path / f"{step}", scenario, resume="auto")
        assert outcome(tmp_path / f"{step}") == outcome(tmp_path / "whole")


WRONG = {
    "update_every: 7": "policies.solver: never learns in schedule.steps 6: update_every 7, alternate null; choose "
    "fewer steps an update, or an earlier start",
    "alternate: {period: 9, start: 6, steps: 3}": "policies.solver: never learns in schedule.steps 6: update_every 1, "
    "alternate period=9 start=6 steps=3; choose fewer steps an update, or an earlier start",
    "{learner: null, update_every: 2}": "policies.solver.update_every: a policy without a learner has no updates; "
    "give it one, or remove this",
    "alternate: {period: 5, start: 3, steps: 3}": "policies.solver.alternate.steps: 3 from step 3 on are more than "
    "the period of 5 has",
    "update_every: 0": "policies.solver.update_every: must be greater than 0 (got 0)",
}


@pytest.mark.parametrize(("change", "message"), [*WRONG.items()], ids=[*WRONG])
def test_a_pace_that_cannot_be_kept_is_named(change: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        validate(
            yaml.safe_load(yaml.safe_dump(quiz_scenario(policies=policies(solver=yaml.safe_load(change))))), "mine.yaml"
        )
    assert message in str(caught.value)
