"""A call that does not come back is broken off and named."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from marl.core.watchdog import CallTimeoutError, CallWatchdog
from tests.support.paths import ROOT


def watch(limit_s: float = 0.1) -> CallWatchdog:
    return CallWatchdog(lambda: "the part", limit_s)


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def match_for_ever() -> None:
    re.fullmatch("(a+)+b", "a" * 64)


def test_an_endless_loop_is_broken_off_and_the_message_names_part_limit_and_line() -> None:
    message = (
        r"^the part did not come back within 0\.1 s \(schedule\.deadline_s\); it was at .*test_watchdog.py:\d+, in"
    )
    with pytest.raises(CallTimeoutError, match=message + " spin$"), watch():
        spin(60)


@pytest.mark.parametrize("hang", [match_for_ever, threading.Event().wait, lambda: time.sleep(60)])
def test_what_hangs_in_c_is_broken_off_too(hang) -> None:
    with pytest.raises(CallTimeoutError), watch():
        hang()


def test_code_that_swallows_all_exceptions_is_broken_off() -> None:
    def stubborn() -> None:
        while True:
            try:
                spin(60)
            except Exception:  # noqa: BLE001 (as a game may do)
                continue

    with pytest.raises(CallTimeoutError), watch():
        stubborn()


def test_an_error_of_the_call_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError), watch():
        raise ZeroDivisionError


def test_time_inside_an_inner_watch_does_not_count_for_the_outer_one() -> None:
    with watch(0.3):
        for _ in range(2):
            spin(0.05)
            with watch(5.0):
                spin(0.1)
            spin(0.05)
        with CallWatchdog(str, math.inf):
            spin(0.4)


def test_the_outer_watch_goes_on_after_the_inner_one() -> None:
    def call() -> None:
        with watch(5.0):
            spin(0.05)
        spin(60)

    with pytest.raises(CallTimeoutError), watch(0.1):
        call()


def test_other_threads_are_left_alone() -> None:
    ended: list[bool] = []

    def work() -> None:
        with watch(0.05):
            spin(0.2)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]


def test_the_timer_stops_when_nothing_is_watched() -> None:
    with watch(0.1):
        pass
    spin(0.1)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(CallTimeoutError), watch(0.1):
        spin(60)


def test_importing_it_takes_no_signal() -> None:
    code = "import marl.core.watchdog, signal; print(signal.getsignal(signal.SIGALRM) == signal.SIG_DFL)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "True\n"


def test_a_process_that_takes_long_to_end_is_not_killed_by_the_timer() -> None:
    code = (
        "import atexit, time; from marl.core.watchdog import CallWatchdog\n"
        "class Slow:\n    def __del__(self, sleep=time.sleep): sleep(0.3)\n"
        "slow = Slow(); slow.itself = slow\n"
        "with CallWatchdog(str, 0.2): pass\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
