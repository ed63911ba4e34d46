"""`marl status`: what a run does is readable while it runs, after it ended, and after it died."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from marl.commands.status import status_lines
from marl.rollout.base import ProcessActivity
from marl.runs.liveness import determine_liveness
from marl.runs.status import STATUS_FILE, RunActivity, read_status, write_status_periodically
from marl.scenario.load import ScenarioError

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
