"""Programs that this machine, not they themselves, keeps from their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marl.host.processes import descendant_pids
from marl.protocols import InfrastructureError
from marl.sandbox import ProgramResult, Sandbox, process, run_program
from marl.sandbox.settings import IsolationMode

# One after the other: some of these tests make one processor busy.
pytestmark = pytest.mark.xdist_group("busy processor")

WAITS = "import time; print('up', flush=True); time.sleep(0.5); print('done')"


@contextmanager
def busy(others: int) -> Iterator[None]:
    """Give this process and all that it starts one processor, which `others` want for themselves, too."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    command = [sys.executable, "-S", "-c", "while True: pass"]
    # Of sessions of their own: the kernel shares a processor among sessions first.
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(others)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for long enough that a program gets its time although other tests and other users are busy, too."""
    monkeypatch.setattr(process, "MAX_WALL_FACTOR", 300.0)


def computes(seconds: float) -> str:
    return f"import time\nwhile time.process_time() < {seconds}: pass\nprint('done')"


def test_a_program_is_given_back_the_time_for_which_it_got_no_processor(
    mechanism: IsolationMode, patient: None
) -> None:
    began = time.monotonic()
    with busy(3):
        assert run_program(Sandbox(how=mechanism, wall_s=0.4), computes(0.2)).stdout == "done\n"
    assert time.monotonic() - began > 0.5, "or this test shows nothing"


def test_a_program_that_sleeps_or_computes_for_too_long_is_given_nothing_back(patient: None) -> None:
    with busy(1):
        for program in ("import time; time.sleep(60)", computes(60)):
            assert run_program(Sandbox(wall_s=0.2), program).reason == "timeout"


def test_a_program_that_got_hardly_any_processor_time_says_nothing_about_its_author() -> None:
    message = r"the program got 0[.\d]* s of processor time in [\d.]+ s on this machine"
    with busy(20), pytest.raises(InfrastructureError, match=message):
        run_program(Sandbox(how="none", wall_s=0.15), computes(60))


SLOWED = """
import os
for slow_down in (
    lambda: os.nice(19),
    lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)),
    lambda: os.sched_setaffinity(0, {0}),
    lambda: os.setpriority(os.PRIO_PROCESS, 0, 19),
):
    try: slow_down(); print("slower")
    except PermissionError: pass
"""


def test_a_program_cannot_make_itself_one_that_gets_no_processor(mechanism: IsolationMode) -> None:
    assert run_program(Sandbox(how=mechanism), SLOWED) == ProgramResult("", "", 0, "finished")


def kill_when_up(name: str) -> threading.Thread:
    """Kill the first process below this one whose command line holds `name`, as soon as a sandboxed program runs."""

    def kill() -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            commands = {process: _command(process) for process in descendant_pids(os.getpid())}
            if any("main.py" in command for command in commands.values()):
                os.kill(next(process for process, command in commands.items() if name in command), signal.SIGKILL)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_program_that_is_killed_once_runs_again(mechanism: IsolationMode) -> None:
    killer = kill_when_up("main.py")
    assert run_program(Sandbox(how=mechanism), WAITS).stdout == "up\ndone\n"
    killer.join()


def test_a_program_that_kills_itself_has_failed(mechanism: IsolationMode) -> None:
    result = run_program(Sandbox(how=mechanism), "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.reason, result.status) == ("killed", 137)


def test_a_sandbox_that_is_killed_from_outside_says_nothing_about_the_program(mechanism: IsolationMode) -> None:
    killer = kill_when_up("bootstrap.py")
    with pytest.raises(InfrastructureError, match="ended by signal 9 from outside"):
        run_program(Sandbox(how=mechanism), WAITS)
    killer.join()
