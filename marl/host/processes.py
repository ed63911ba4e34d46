"""State and CPU time of a process and its descendants, read from Linux's /proc; a watcher that ends them with it.

This file is also a program, started by `start_descendant_killer`. It imports only the standard library, so that the
watcher starts within milliseconds and needs little memory.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)
"""Slice of `_proc_stat_fields` with the CPU times (user, system) of a process and of its ended children, in ticks."""
_WATCH_S = 0.5
"""Interval at which the watcher of `start_descendant_killer` looks for new descendants, in seconds."""
_PROCESS_GONE_ERRORS = (FileNotFoundError, ProcessLookupError)
"""Errors raised for a process that has ended in the meantime, or on a system without /proc."""


def child_pids(pid: int) -> Iterator[int]:
    """Yield the process ids of the children of process `pid`."""
    with suppress(*_PROCESS_GONE_ERRORS):
        # Linux lists a process's children by the thread that started them, so all threads are visited.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())


def descendant_pids(pid: int) -> Iterator[int]:
    """Yield the process ids of all descendants of process `pid`."""
    for child in child_pids(pid):
        yield child
        yield from descendant_pids(child)


def process_tree_states(pid: int) -> set[str]:
    """Return the states of process `pid` and its descendants: `R` (running or runnable), `S` (sleeping), ..."""
    states = set()
    for tree_pid in (pid, *descendant_pids(pid)):
        if fields := _proc_stat_fields(tree_pid):
            states.add(fields[0])
    return states


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of process `pid` and of its ended children, or 0 if the process is gone."""
    return sum(map(int, _proc_stat_fields(pid)[_TIMES])) / _TICKS_PER_SECOND


def process_tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of process `pid` and of all its descendants."""
    return sum(map(process_cpu_s, (pid, *descendant_pids(pid))))


def _proc_stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the process state on, or [] if the process is gone."""
    with suppress(*_PROCESS_GONE_ERRORS), open(f"/proc/{pid}/stat") as file:
        # The fields follow the last bracket: the process name may itself contain brackets and spaces.
        return file.read().rpartition(")")[2].split()
    return []


def start_descendant_killer(*commands: str) -> subprocess.Popen[bytes] | None:
    """Start a watcher that kills certain children of this process, with their descendants, once this process has ended.

    Watched are the children whose command line contains one of the texts `commands`, such as the path of a folder with
    programs, and the descendants of these children. The watcher ends by itself after this process, however this process
    ends. Return the watcher, or None on systems other than Linux, which have no /proc.
    """
    if sys.platform != "linux":
        return None
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), *commands],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A separate session protects the watcher from Ctrl-C and from signals to the run's process group.
        start_new_session=True,
    )


def _kill_descendants_after_exit(root_pid: int, commands: Sequence[str]) -> None:
    """Wait for the end of process `root_pid`, then kill its descendants that `start_descendant_killer` describes.

    Descendants are held as file descriptors, because the number of an ended process may be given to another one.
    """
    held: dict[int, int] = {}
    with suppress(ProcessLookupError):
        watched = os.pidfd_open(root_pid)
        while not _process_has_ended(watched, _WATCH_S):
            # Watchers are skipped, because their own command lines also contain the texts.
            lines = {child: _command_line(child) for child in child_pids(root_pid)}
            for root in [child for child, line in lines.items() if _is_watched(line, commands)]:
                for found in (root, *descendant_pids(root)):
                    if found not in held:
                        with suppress(ProcessLookupError):
                            held[found] = os.pidfd_open(found)
            for ended in [pid for pid, descriptor in held.items() if _process_has_ended(descriptor, 0)]:
                os.close(held.pop(ended))
    for descriptor in held.values():
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)


def _is_watched(command_line: str, commands: Sequence[str]) -> bool:
    """Return True if `command_line` contains one of the texts `commands` and is not that of a watcher."""
    return __file__ not in command_line and any(command in command_line for command in commands)


def _process_has_ended(process_descriptor: int, wait_s: float) -> bool:
    """Return True if the process of `process_descriptor` has ended. Wait at most `wait_s` seconds for its end."""
    return bool(select.select([process_descriptor], [], [], wait_s)[0])


def _command_line(pid: int) -> str:
    """Return the arguments of process `pid`, separated by NUL, or "" if the process is gone."""
    with suppress(*_PROCESS_GONE_ERRORS), open(f"/proc/{pid}/cmdline", errors="replace") as file:
        return file.read()
    return ""


if __name__ == "__main__":
    _kill_descendants_after_exit(int(sys.argv[1]), sys.argv[2:])
