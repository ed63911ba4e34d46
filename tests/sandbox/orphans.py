"""Detector of processes that outlive their parents."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


class Orphans:
    """Processes that outlive their parents: under `PR_SET_CHILD_SUBREAPER` they become children of this one."""

    def __init__(self) -> None:
        self._before = self._children()

    def assert_none_is_left(self) -> None:
        deadline = time.monotonic() + 10
        while left := self._children() - self._before:
            assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
            for process in left:
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.002)

    def _children(self) -> set[int]:
        return {
            int(child)
            for thread in os.listdir("/proc/self/task")
            for child in Path(f"/proc/self/task/{thread}/children").read_text().split()
        }
