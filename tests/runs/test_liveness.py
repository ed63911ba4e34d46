"""Whether a run goes on, has ended or has died is told from its folder, which is only read."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest

from marl.runs.liveness import RunLiveness, determine_liveness, format_duration
from marl.runs.locks import lock_owner
from marl.runs.run_folder import RunFolder
from marl.runs.status import STATUS_FILE, RunActivity, RunStatus

NOW = 1_000_000.0


def state(
    run: Path, *, silent_s: float = 1.0, ended: bool = False, step: int = 3, problem: str = "", held: bool = False
) -> RunLiveness:
    status = RunStatus("node1", 7, NOW - silent_s, ended, RunActivity(step, 10, "play", NOW - silent_s - 4), problem)
    (run / STATUS_FILE).write_text(json.dumps(asdict(status)))
    with RunFolder(run).hold_lock() if held else nullcontext():
        return determine_liveness(run, step, 10, NOW)


def test_a_run_whose_status_is_new_goes_on(tmp_path: Path) -> None:
    assert state(tmp_path) == RunLiveness("training", "process 7 on node1: play for 4 s")


@pytest.mark.parametrize(
    ("case", "expected", "words"),
    [
        ({"silent_s": 200.0}, "died", "process 7 on node1 was last heard of 3 min 20 s ago in stage 'play'"),
        ({"silent_s": 200.0, "held": True}, "silent", "process THIS holds the folder, but has written noth"),
        ({"ended": True, "step": 10}, "ended", "1 s ago"),
        ({"ended": True}, "stopped", "1 s ago, in order"),
        ({"ended": True, "problem": "NonFinite: x"}, "failed", "1 s ago, by NonFinite: x"),
        ({"ended": True, "held": True}, "training", "process THIS holds the folder and is getting ready"),
    ],
)
def test_other_runs_have_ended_or_died_or_hang(
    case: dict[str, object], expected: str, words: str, tmp_path: Path
) -> None:
    found = state(tmp_path, **case)  # type: ignore[arg-type]
    assert found.state == expected
    assert found.details.startswith(words.replace("THIS", str(os.getpid())))


def test_a_run_without_a_status_is_judged_by_its_lock_and_its_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    assert determine_liveness(tmp_path, 0, 10, NOW).state == "not started"
    assert determine_liveness(tmp_path, 10, 10, NOW).state == "ended"
    stopped = determine_liveness(tmp_path, 3, 10, time.time() + 5)
    assert (stopped.state, stopped.description) == ("stopped", "or died; newest row 5 s old")
    with RunFolder(tmp_path).hold_lock():
        assert determine_liveness(tmp_path, 3, 10, NOW).state == "training"


def test_a_run_whose_folder_was_moved_away_is_gone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert determine_liveness(tmp_path / "run", 3, 10, NOW).state == "stopped"
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    gone = determine_liveness(tmp_path / "run", 3, 10, NOW)
    assert (gone.state, gone.newest_row_s) == ("folder gone", None)
    assert gone.details == f"{tmp_path / 'run'} is not there: it was moved or removed"


def test_every_state_has_the_age_of_the_newest_row(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    os.utime(tmp_path / "metrics.jsonl", (NOW - 200, NOW - 200))
    assert state(tmp_path).description == "process 7 on node1: play for 4 s; newest row 3 min 20 s old"
    assert state(tmp_path, silent_s=300.0).row_age == "3 min 20 s"


def test_asking_for_the_owner_of_a_lock_takes_it_from_nobody(tmp_path: Path) -> None:
    assert lock_owner(tmp_path) is None
    with RunFolder(tmp_path).hold_lock():
        assert [lock_owner(tmp_path) for _ in range(3)] == [str(os.getpid())] * 3
    assert lock_owner(tmp_path) is None
    with RunFolder(tmp_path).hold_lock():
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("12345")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "secret")
    assert lock_owner(tmp_path / "run") is None


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0 s"), (61, "1 min 1 s"), (7325, "2 h 2 min"), (200_000, "2 d 7 h"), (-3, "0 s")]
)
def test_lengths_of_time_are_in_words(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
