"""State and processor time of processes, against what the processes themselves say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl.host.processes import descendant_pids, process_cpu_s, process_tree_cpu_s, process_tree_states

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
        while process_tree_states(parent.pid) != {"S"}:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield parent.pid, child


def test_processor_time_is_that_of_a_process_and_of_all_that_it_started(family: tuple[int, int]) -> None:
    parent, child = family
    assert list(descendant_pids(parent)) == [child]
    assert 0.28 < process_cpu_s(parent) < 0.6
    assert 0.18 < process_cpu_s(child) < 0.5
    assert process_tree_cpu_s(parent) == process_cpu_s(parent) + process_cpu_s(child)


def test_states_are_told_apart(family: tuple[int, int]) -> None:
    parent, child = family
    os.kill(child, signal.SIGSTOP)
    until = time.monotonic() + 30
    while process_tree_states(parent) != {"S", "T"}:
        assert time.monotonic() < until
    os.kill(child, signal.SIGCONT)
    assert "R" in process_tree_states(os.getpid())


def test_what_is_gone_uses_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    assert (
        process_cpu_s(gone.pid),
        process_tree_cpu_s(gone.pid),
        process_tree_states(gone.pid),
        list(descendant_pids(gone.pid)),
    ) == (
        0,
        0,
        set(),
        [],
    )


RUN = """
import subprocess, sys, time
from marl.host.processes import start_descendant_killer
start_descendant_killer(sys.argv[1])
for program in sys.argv[2:]:
    subprocess.Popen([sys.executable, "-S", program], start_new_session=True)
time.sleep(60)
"""
SERVER = """
import subprocess, sys, time
command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
print(subprocess.Popen(command, start_new_session=True).pid, flush=True)
time.sleep(60)
"""


def test_programs_of_a_folder_end_with_their_descendants_after_sigkill_of_their_parent(tmp_path: Path) -> None:
    for folder in ("watched", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "server.py").write_text(SERVER)
    arguments = [str(tmp_path / name) for name in ("watched", "watched/server.py", "other/server.py")]
    with subprocess.Popen([sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE) as run:
        assert run.stdout
        grandchildren = {int(run.stdout.readline()), int(run.stdout.readline())}
        time.sleep(1.2)  # two looks of the watcher
        watcher, *servers = sorted(set(descendant_pids(run.pid)) - grandchildren)
        run.kill()
    until = time.monotonic() + 10
    while len(left := [pid for pid in (watcher, *servers, *grandchildren) if process_tree_states(pid) - {"Z"}]) > 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in left]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert sum("other/server.py" in command for command in commands) == 1
    assert not any("watched" in command for command in commands)
