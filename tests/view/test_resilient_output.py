"""Output that fails: training goes on, and whoever can still be told is told once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from marl.core.types import Metrics
from marl.runs.run_folder import RunFolder
from marl.training.session import StepCallbackMonitor
from marl.view.console import ConsoleRaisingBrokenPipe, LineMonitor, MonitorGroup, RunMonitor
from marl.view.trackers import ExperimentTracker, TensorBoardEvents
from tests.support.run_processes import RunWorkspace, exit_status, metric_lines


@pytest.mark.one_in(3)
def test_a_reader_that_goes_away_after_one_line_ends_no_training(whole: RunWorkspace, desk: RunWorkspace) -> None:
    os.mkfifo(desk.path / "log")  # standard output and error of the run
    process = desk.start_training()
    with (desk.path / "log").open() as pipe:
        assert pipe.readline()
    assert exit_status(process) == 0
    assert metric_lines(desk.run) == metric_lines(whole.run)


def test_a_disk_that_is_full_for_what_is_printed_ends_no_training(whole: RunWorkspace, desk: RunWorkspace) -> None:
    (desk.path / "log").symlink_to("/dev/full")
    assert desk.train() == 0
    assert metric_lines(desk.run) == metric_lines(whole.run)


PRINTING = """
import os, sys
from marl.view.resilient_output import tolerate_broken_output
with tolerate_broken_output():
    for _ in range(3):
        print("x" * 100_000, flush=True)
        print("to the other", file=sys.stderr)
    os.system("echo from a child")
print("after it")
"""


def printed(script: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit status and standard error of a script whose standard output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | (environment or {}),
    )
    os.close(writer)
    return done.returncode, done.stderr


def test_the_other_stream_says_once_that_one_is_gone_and_python_ends_as_if_nothing_was() -> None:
    status, said = printed(PRINTING)
    assert status == 0
    lines = said.splitlines()
    assert lines[0] == "marl: standard output is gone ([Errno 32] Broken pipe); the run goes on"
    assert lines[1:] == ["to the other"] * 3


def test_characters_that_a_console_cannot_encode_are_spelled_out() -> None:
    script = (
        "from marl.view.resilient_output import tolerate_broken_output\nwith tolerate_broken_output(): print('█ done')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=True)
    assert done.stdout == b"\\u2588 done\n"


def test_a_slow_reader_of_a_pipe_that_somebody_made_non_blocking_gets_everything() -> None:
    script = (
        "import os\nos.set_blocking(1, False)\nfrom marl.view.resilient_output import tolerate_broken_output\n"
        "with tolerate_broken_output():\n    for _ in range(100): print('x' * 9_999)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert done.stdout == (b"x" * 9_999 + b"\n") * 100
    assert done.stderr == b""


class NetworkError(RuntimeError):
    """An error of a tracker's own."""


def tracker(monkeypatch: pytest.MonkeyPatch, sent: list[int]) -> ExperimentTracker:
    """A tracker whose client loses the network at step 2."""

    def log(metrics: Metrics, step: int) -> None:
        if step >= 2:
            raise NetworkError("no route to host")
        sent.append(step)

    library = SimpleNamespace(init=SimpleNamespace, log=log, finish=lambda: sent.append(-1))
    monkeypatch.setitem(sys.modules, "trackio", library)
    return ExperimentTracker("trackio")


@pytest.fixture
def home(whole: RunWorkspace, tmp_path: Path) -> RunFolder:
    """A folder of a run without rows."""
    (tmp_path / "scenario.yaml").write_bytes((whole.run / "scenario.yaml").read_bytes())
    return RunFolder(tmp_path)


def test_a_tracker_that_raises_is_left_out_and_said_once(home: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, sent = io.StringIO(), list[int]()
    monitors = MonitorGroup([LineMonitor(Console(file=screen, width=400), 3), tracker(monkeypatch, sent)])
    monitors.begin(home)
    for step in range(4):
        monitors.log_metrics(step, {"eval/a": 1.0})
    monitors.close()
    warning = "WARNING: tracker trackio failed, and the run goes on without: no route to host"
    assert screen.getvalue().count(warning) == 1
    assert screen.getvalue().count("\nstep ") == 4
    assert sent == [0, 1]


def test_event_files_that_cannot_be_written_are_left_out_and_said(home: RunFolder) -> None:
    (home.path / "events").write_text("in the way")
    screen = io.StringIO()
    monitors = MonitorGroup([LineMonitor(Console(file=screen, width=400), 3), TensorBoardEvents()])
    monitors.begin(home)
    monitors.log_metrics(1, {"eval/a": 1.0})
    monitors.close()
    assert "WARNING: event files failed, and the run goes on without: " in screen.getvalue()
    assert "step 1/3" in screen.getvalue()


def test_a_console_whose_pipe_is_closed_is_left_out_and_standard_error_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    got: list[int] = []

    class Counting(RunMonitor):
        def log_metrics(self, step: int, metrics: Metrics) -> None:
            got.append(step)

    with os.fdopen(writer, "w") as closed:
        monitors = MonitorGroup([LineMonitor(ConsoleRaisingBrokenPipe(file=closed, width=400), 2), Counting()])
        for step in range(3):
            monitors.log_metrics(step, {"eval/a": 1.0})
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)
    assert got == [0, 1, 2]
    assert capfd.readouterr().err.count("WARNING: standard output failed") == 1


def test_a_callback_that_raises_ends_the_run() -> None:
    def raising(step: int, metrics: Metrics) -> None:
        raise OSError(f"at step {step}")

    with pytest.raises(OSError, match="at step 0"):
        MonitorGroup([StepCallbackMonitor(raising)]).log_metrics(0, {})
