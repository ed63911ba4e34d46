"""Stopping a run: by signals, in the middle of anything, and what is kept."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl.runs.run_folder import RunFolder
from marl.scenario.load import validate
from marl.training import loop
from marl.training.build import build
from marl.training.loop import TrainingLoop
from marl.training.stop_request import StopDeadlineExceeded, StopRequest
from marl.view.closing_report import closing_report
from tests.support.failing_games import WaitingGame
from tests.support.run_processes import RunWorkspace, SignalTrigger, kuhn_scenario, metric_lines, outcome


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Signals have their usual handlers, even if these tests run behind `nohup` or in the background of a script."""
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ask(number: int, after_s: float = 0.0) -> None:
    """Send this process a signal, from another thread if later."""
    threading.Timer(after_s, os.kill, (os.getpid(), number)).start() if after_s else os.kill(os.getpid(), number)


def wait() -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        time.sleep(0.01)
    pytest.fail("nothing has ended this")


def test_what_runs_when_a_stop_is_asked_for_is_broken_off_when_the_patience_with_it_is_over() -> None:
    with StopRequest() as stop, stop.grace_period(math.inf):
        ask(signal.SIGTERM)
        time.sleep(1.1)
        assert stop.requested, "and nothing is broken off"
        with pytest.raises(StopDeadlineExceeded), stop.grace_period(1.5):
            wait()


def test_before_the_first_step_a_stop_is_at_once() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, StopRequest() as stop, stop.grace_period(0.0):
        ask(signal.SIGHUP)
    assert caught.type is KeyboardInterrupt


def test_only_a_second_ctrl_c_stops_at_once_as_schedulers_say_it_twice() -> None:
    with StopRequest() as stop, stop.grace_period(math.inf):
        for number in (signal.SIGUSR1, signal.SIGXCPU, signal.SIGTERM, signal.SIGTERM):
            ask(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt) as caught:
            ask(signal.SIGINT)
    assert caught.type is KeyboardInterrupt


def test_a_signal_that_is_ignored_stays_ignored_as_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            ask(signal.SIGHUP)
            assert not stop.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_threads_and_pipes_are_gone_afterwards() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGURG)]
    pipes, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        with StopRequest():
            pass
    until = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.01)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGURG)] == handlers
    # Those of earlier tests may end meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= pipes
    assert threading.active_count() <= threads


STUCK = """
import ctypes, os, threading
from marl.training import stop_request
stop_request.LEAVE_S = 1.0
lock, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
with stop_request.StopRequest(exits=True):
    threading.Timer(0.3, os.kill, (os.getpid(), 15)).start()
    for _ in range(2):
        library.pthread_mutex_lock(lock)  # the second time, it waits for ever, whatever signals come
"""


def test_a_call_that_python_cannot_break_off_ends_with_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 130
    assert "left in the middle of a call that does not end" in done.stderr


LATE = """
import os, time
from marl.training import stop_request
stop_request.LEAVE_S = 2.0
with stop_request.StopRequest(exits=True) as stop, stop.grace_period(5.0):
    time.sleep(2.2)  # the run has been going on for a while
    os.kill(os.getpid(), 15)
    time.sleep(0.2)
print("in time")
"""


def test_a_stop_of_a_run_that_has_gone_on_for_long_has_the_same_time_to_leave() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "in time\n"


SIGNALS = [
    pytest.param((signal.SIGINT,), marks=pytest.mark.slow),
    pytest.param((signal.SIGTERM,), marks=pytest.mark.slow),
    (signal.SIGHUP, signal.SIGUSR1, signal.SIGXCPU, signal.SIGTERM),
]


@pytest.mark.parametrize("numbers", SIGNALS)
@pytest.mark.one_in(3)
def test_signals_end_the_run_after_its_step_with_a_checkpoint(
    numbers: tuple[int, ...], whole: RunWorkspace, desk: RunWorkspace
) -> None:
    assert desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 4, numbers)) == 130
    assert [p.name for p in sorted((desk.run / "checkpoints").iterdir())] == ["000003", "000004"]
    assert len(metric_lines(desk.run)) == 5
    said = desk.take_output()
    assert "stopping after this step" in said
    assert "stopped at step 4; go on with: marl train /" in said
    assert desk.train("--resume", "auto") == 0
    assert metric_lines(desk.run) == metric_lines(whole.run)


@pytest.mark.one_in(3)
def test_a_second_ctrl_c_stops_at_once_and_promises_no_checkpoint_that_is_not_there(
    whole: RunWorkspace, desk: RunWorkspace
) -> None:
    assert desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 6, (signal.SIGINT, signal.SIGINT))) == 130
    assert [p.name for p in (desk.run / "checkpoints").iterdir()] == ["000003"]
    said = desk.take_output()
    assert "stopped at step 5; go on from checkpoint 000003 (the steps after it are done again) with: " in said
    assert desk.train("--resume", "auto") == 0
    assert outcome(desk.run) == outcome(whole.run)


@pytest.mark.one_in(3)
def test_after_a_stop_no_figure_of_one_evaluation_is_shown_as_a_result(desk: RunWorkspace) -> None:
    assert desk.train(kill=SignalTrigger("call", "CreditStage.__call__", 2, (signal.SIGINT, signal.SIGINT))) == 130
    said = desk.take_output()
    assert "stopped at step 1, before the first checkpoint: `marl train /" in said
    assert "measured once: nothing to compare it with" in said
    report = said.partition("stopped at step")[2]
    assert "->" not in report
    assert "█" not in report


@pytest.fixture
def halting(tmp_path: Path, whole: RunWorkspace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A scenario whose game stands still while a file exists; steps of 32 episodes, evaluations of 6."""
    monkeypatch.setattr(loop, "STEP_S", 0.5)
    model = str(whole.run / "checkpoints" / "000008" / "policies" / "actor")
    policies = {"actor": whole.scenario["policies"]["actor"] | {"model": model}}
    game = {"kind": "tests.support.failing_games:Waiting", "folder": str(tmp_path), "nth": 0}
    return kuhn_scenario(game=game, policies=policies, evaluate={"every": 4, "against": {"random": 6}})


def sitting(scenario: dict[str, Any], path: Path, *, resume: int = 0, stop_when_halted: bool = False) -> bool:
    """Train in this process; True if it went to the end."""
    WaitingGame.dealt = 0 if not resume else -(10**9)
    checked, home = validate(scenario), RunFolder(path)
    if not home.has_run:
        home.create(checked)
    training = TrainingLoop(build(checked), home, [])
    training.resume(resume)

    def watch() -> None:
        while not (path.parent / "halted").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    with StopRequest() as stop:
        if stop_when_halted:
            threading.Thread(target=watch, daemon=True).start()
        return training(stop)


@pytest.mark.parametrize(
    ("nth", "step", "measured"),
    [
        (6 + 32 * 3 + 20, 3, True),  # the play of the fourth step
        (6 + 32 * 4 + 3, 4, False),  # the evaluation after it
        (6 + 32 * 8 + 6 + 3, 8, False),  # the evaluation after the last
    ],
)
@pytest.mark.one_in(3)
def test_play_or_an_evaluation_is_broken_off_and_a_run_that_goes_on_is_the_one_that_was_not_stopped(
    nth: int, step: int, measured: bool, halting: dict[str, Any], tmp_path: Path
) -> None:
    assert sitting(halting, tmp_path / "whole")
    halting["game"]["nth"] = nth
    (tmp_path / "halt").touch()
    began = time.monotonic()
    assert not sitting(halting, tmp_path / "run", stop_when_halted=True)
    assert time.monotonic() - began < 25
    home = RunFolder(tmp_path / "run")
    assert home.latest_checkpoint() == (step, [])
    assert (home.metrics_if_unevaluated(step) is None) == measured
    assert [row["step"] for row in home.rows()] == list(range(step + 1))
    assert f"stopped at step {step}; go on with" in closing_report(home, is_finished=False)
    assert sitting(halting, tmp_path / "run", resume=step)
    assert home.metrics_if_unevaluated(8) is None
    assert metric_lines(tmp_path / "run") == metric_lines(tmp_path / "whole")


@pytest.mark.slow
def test_a_stop_while_an_evaluation_runs_leaves_within_25_seconds(halting: dict[str, Any], desk: RunWorkspace) -> None:
    """As `marl train`, with the real patience."""
    halting["game"] |= {"nth": 3, "folder": str(desk.path)}
    (desk.path / "halt").touch()
    # `--allow` skips the random episodes before a run, of which one would halt as well.
    # `--trust`: the game's folder holds a link to the cache of models.
    process = RunWorkspace(desk.path, halting).start_training("--allow", "--trust")
    until = time.monotonic() + 60
    while not (desk.path / "halted").exists():
        assert time.monotonic() < until, desk.take_output()
        time.sleep(0.02)
    began = time.monotonic()
    os.kill(process.pid or 0, signal.SIGHUP)
    process.join(60)
    assert process.exitcode == 130
    assert time.monotonic() - began < 25
    assert "stopped at step 0, before the first checkpoint" in desk.take_output()
