"""State and processor time of a process and all that it started, as Linux tells them in /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

_TICKS = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)
"""Place of the user and system times of a process and of the children that it has waited for, after its name."""
_GONE = (FileNotFoundError, ProcessLookupError)
"""Errors of reading about a process that has ended meanwhile, or where there is no /proc."""


def descendants(process: int) -> Iterator[int]:
    """Yield the numbers of the children of `process`, of their children and so on."""
    with suppress(*_GONE):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                for child in map(int, file.read().split()):
                    yield child
                    yield from descendants(child)


def _status(process: int) -> list[str]:
    """Return the fields of /proc/N/stat from the state on; none if the process is gone."""
    with suppress(*_GONE), open(f"/proc/{process}/stat") as file:
        # The name, in brackets, may hold anything.
        return file.read().rpartition(")")[2].split()
    return []


def states(process: int) -> set[str]:
    """Return the states of a process and all that it started: `R` runs or wants to, `S` sleeps, `T` is stopped, ..."""
    return {fields[0] for one in (process, *descendants(process)) if (fields := _status(one))}


def own_cpu_s(process: int) -> float:
    """Return the processor seconds of a process and of its children that have ended; 0 if it is gone itself."""
    return sum(map(int, _status(process)[_TIMES])) / _TICKS


def tree_cpu_s(process: int) -> float:
    """Return the processor seconds of a process and of all that it started."""
    return sum(map(own_cpu_s, (process, *descendants(process))))
