"""State and processor time of processes, against what the processes themselves say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from marl.host.processes import descendants, own_cpu_s, process_states, tree_cpu_s

FAMILY = """
import os, sys, time
if child := os.fork():
    until = time.process_time() + 0.3
    while time.process_time() < until: pass
    print(child, flush=True)
    sys.stdin.read()
    os.kill(child, 9)
    os.wait()
else:
    until = time.process_time() + 0.2
    while time.process_time() < until: pass
    time.sleep(60)
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A parent that has used 0.3 s of processor time and its child, which has used 0.2 s; both sleep."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        until = time.monotonic() + 30
        while process_states(parent.pid) != {"S"}:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield parent.pid, child


def test_processor_time_is_that_of_a_process_and_of_all_that_it_started(family: tuple[int, int]) -> None:
    parent, child = family
    assert list(descendants(parent)) == [child]
    assert 0.28 < own_cpu_s(parent) < 0.6
    assert 0.18 < own_cpu_s(child) < 0.5
    assert tree_cpu_s(parent) == own_cpu_s(parent) + own_cpu_s(child)


def test_states_are_told_apart(family: tuple[int, int]) -> None:
    parent, child = family
    os.kill(child, signal.SIGSTOP)
    until = time.monotonic() + 30
    while process_states(parent) != {"S", "T"}:
        assert time.monotonic() < until
    os.kill(child, signal.SIGCONT)
    assert "R" in process_states(os.getpid())


def test_what_is_gone_uses_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    assert (own_cpu_s(gone.pid), tree_cpu_s(gone.pid), process_states(gone.pid), list(descendants(gone.pid))) == (
        0,
        0,
        set(),
        [],
    )
