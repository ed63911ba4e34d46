"""State and CPU time of a process and its descendants, read from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)
"""Fields of /proc/N/stat after the name: user and system time of the process, and of its children that have ended."""
_GONE = (FileNotFoundError, ProcessLookupError)
"""Errors raised for a process that has ended in the meantime, or on a system without /proc."""


def descendants(process: int) -> Iterator[int]:
    """Yield the process ids of the children of `process`, of their children and so on."""
    with suppress(*_GONE):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                for child in map(int, file.read().split()):
                    yield child
                    yield from descendants(child)


def process_states(process: int) -> set[str]:
    """Return the states of `process` and its descendants: `R` running or runnable, `S` sleeping, `T` stopped, ..."""
    states = set()
    for process_id in (process, *descendants(process)):
        if fields := _stat_fields(process_id):
            states.add(fields[0])
    return states


def own_cpu_s(process: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended, or 0 if the process is gone."""
    return sum(map(int, _stat_fields(process)[_TIMES])) / _TICKS_PER_SECOND


def tree_cpu_s(process: int) -> float:
    """Return the CPU seconds of a process and of all its descendants."""
    return sum(map(own_cpu_s, (process, *descendants(process))))


def _stat_fields(process: int) -> list[str]:
    """Return the fields of /proc/N/stat from the state on, or an empty list if the process is gone."""
    with suppress(*_GONE), open(f"/proc/{process}/stat") as file:
        # The process name, in brackets, may itself hold brackets and spaces.
        return file.read().rpartition(")")[2].split()
    return []
