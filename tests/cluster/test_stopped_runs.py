"""A run on a Ray cluster of its own that is asked to stop, or killed: what it leaves, and how it goes on."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from marl.commands.status import status_lines
from marl.runs.checkpoint import checkpoint_steps
from marl.runs.liveness import determine_liveness
from marl.runs.status import read_status
from tests.support.run_processes import RunWorkspace, exit_status, metric_lines

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def after(step: int, run: Path, process: BaseProcess) -> int:
    """The number of the process, as soon as so many steps are done."""
    until = time.monotonic() + 300
    while not (run / "metrics.jsonl").exists() or len(metric_lines(run)) - 1 < step:
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.1)
    return int(process.pid or 0)


def test_a_run_that_is_asked_to_stop_leaves_a_checkpoint_and_one_that_was_killed_says_what_it_did(
    desk: RunWorkspace,
) -> None:
    cluster = {"simulators": 2, "cpus": 0.5}
    schedule = desk.scenario["schedule"] | {"steps": 60}
    desk = replace(desk, scenario=desk.scenario | {"cluster": cluster, "schedule": schedule})
    first = desk.start_training()
    os.kill(after(2, desk.run, first), signal.SIGTERM)
    assert exit_status(first) == 130, desk.take_output()
    done = checkpoint_steps(desk.run / "checkpoints")[-1]
    assert 2 <= done == len(metric_lines(desk.run)) - 1 < 60  # step 0 has a row, too
    status = read_status(desk.run)
    interrupted = determine_liveness(desk.run, done, 60, status.written)
    assert next(status_lines(status, interrupted)).startswith(f"stopped: step {done} of 60; 0 s ago, in order")
    second = desk.start_training("--resume", "auto")
    killed = after(done + 4, desk.run, second)
    descendants = psutil.Process(killed).children(recursive=True)
    assert len(descendants) > 6  # servers and agents of Ray, two simulators
    os.kill(killed, signal.SIGKILL)
    assert exit_status(second) == -signal.SIGKILL
    # Agents of the raylet used to live on for a minute.
    assert psutil.wait_procs(descendants, 5)[1] == []
    status = read_status(desk.run)
    run, *simulators = status_lines(status, determine_liveness(desk.run, done + 4, 60, status.written + 60))
    assert run.startswith(f"died: step {status.activity.step} of 60; process ")
    assert "was last heard of 1 min 0 s ago" in run
    assert [line.partition(" (")[0] for line in simulators] == ["  simulator 0", "  simulator 1"]
