"""`marl status`: what a run does is readable while it runs, after it ended, and after it died."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from marl.commands.status import status_lines
from marl.rollout.base import BaseSimulator, ProcessActivity
from marl.runs.liveness import determine_liveness
from marl.runs.status import STATUS_FILE, RunActivity, read_status, write_status_periodically
from marl.scenario.load import ScenarioError, validate
from marl.scenario.schema import Scenario
from marl.training.placement import LocalPlacement, ModelSources
from marl.training.session import NewOrResumedRunStart, train_in_folder
from tests.support.run_processes import kuhn_scenario

LEARNER = ProcessActivity("learner of policy 'actor', process 0", "node2, process 8", "idle", 80.0, 0)
PLAYING = RunActivity(
    3, 50, "play", 100.0, (ProcessActivity("simulator 0", "node1, process 7", "idle", 90.0, 4, 2),), (LEARNER,)
)


def test_a_status_is_read_while_the_run_goes_on_and_after_it_ended(tmp_path: Path) -> None:
    with write_status_periodically(tmp_path, lambda: PLAYING):
        running = read_status(tmp_path)
    assert running.activity == read_status(tmp_path).activity == PLAYING
    assert (running.ended, read_status(tmp_path).ended) == (False, True)


def test_a_run_that_died_says_what_it_did_last(tmp_path: Path) -> None:
    with write_status_periodically(tmp_path, lambda: PLAYING):
        died = read_status(tmp_path)
    # The state is read from a status that was written while the run went on, as a killed process leaves it.
    (tmp_path / STATUS_FILE).write_text(json.dumps(asdict(died)))
    run, simulator, learner = status_lines(died, determine_liveness(tmp_path, 3, 50, died.written + 60))
    assert run.startswith("died: step 3 of 50; process ")
    assert "was last heard of 1 min 0 s ago" in run
    assert simulator.startswith("  simulator 0 (node1, process 7): idle for ")
    assert simulator.endswith("; 4 episodes open; restarted 2 times")
    assert learner.startswith("  learner of policy 'actor', process 0 (node2, process 8): idle for ")


def test_an_error_that_ends_a_run_is_in_its_status(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), write_status_periodically(tmp_path, lambda: PLAYING):
        raise ZeroDivisionError("in step 4")
    assert read_status(tmp_path).problem == "ZeroDivisionError: in step 4"
    assert read_status(tmp_path).ended


def test_a_status_that_is_missing_or_damaged_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no run was trained here"):
        read_status(tmp_path)
    (tmp_path / STATUS_FILE).write_text("{")
    with pytest.raises(ScenarioError, match="damaged"):
        read_status(tmp_path)


class Seen(Exception):  # noqa: N818 (ends the run)
    """The status was read."""


class ReadingPlacement(LocalPlacement):
    """Reads the status of the run while the run waits for its simulators."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process_activities(self) -> tuple[list[ProcessActivity], list[ProcessActivity]]:
        return [ProcessActivity("cluster", "", "waiting for machines", 90.0, 0)], [LEARNER]

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> BaseSimulator:
        self.status = read_status(self.folder)
        raise Seen


def test_a_status_says_what_a_run_waits_for_before_its_first_step(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    scenario = validate(kuhn_scenario(schedule={"steps": 7, "groups": 2, "group_size": 2, "threads": 1}))
    placement = ReadingPlacement(tmp_path)
    with pytest.raises(Seen):
        train_in_folder(scenario, tmp_path, NewOrResumedRunStart(), [], placement=placement)
    activity = placement.status.activity
    assert (activity.step, activity.steps, placement.status.ended) == (0, 7, False)
    assert [each.doing for each in (*activity.simulators, *activity.learners)] == ["waiting for machines", "idle"]
