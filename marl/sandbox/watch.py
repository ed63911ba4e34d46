"""Watches a sandbox from outside: what it says, how long it takes, how much memory it fills."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from marl.sandbox.settings import Sandbox

Why = Literal["finished", "timeout", "memory", "output", "killed"]
_LOOK_S = 0.02
_DRAIN_S = 2.0
_CHUNK = 1 << 16


class Watch:
    """One running sandbox, from its start to its end."""

    def __init__(self, process: subprocess.Popen[bytes], sandbox: Sandbox) -> None:
        assert process.stdout
        assert process.stderr
        self._process, self._sandbox = process, sandbox
        self._pipes = (process.stdout, process.stderr)
        self.said = (bytearray(), bytearray())
        """Standard output and error, up to the limit."""
        self._open = dict(zip((pipe.fileno() for pipe in self._pipes), self.said, strict=True))
        self._poller = select.poll()
        for descriptor in self._open:
            self._poller.register(descriptor, select.POLLIN)

    def wait(self) -> Why:
        """Until the program has ended or met a limit."""
        ended = os.pidfd_open(self._process.pid)
        self._poller.register(ended, select.POLLIN)
        try:
            return self._wait(ended)
        finally:
            self._poller.unregister(ended)
            os.close(ended)

    def _wait(self, ended: int) -> Why:
        deadline, look = time.monotonic() + self._sandbox.wall_s, 0.0
        while (now := time.monotonic()) < deadline:
            if now >= look:
                look = now + _LOOK_S
                if _memory(self._process.pid) > self._sandbox.memory_mb << 20:
                    return "memory"
            if ended in self._hear(min(_LOOK_S, deadline - now)):
                return "finished"
            if self._too_much():
                return "output"
        return "timeout"

    def end(self) -> None:
        """Kill whatever is left, and keep what it had said. The namespace of processes dies with its first one."""
        # Nobody has buried the process, so its number is still its own.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _DRAIN_S
        while self._open and not self._too_much() and (left := deadline - time.monotonic()) > 0:
            self._hear(left)
        for pipe in self._pipes:
            pipe.close()
        room = self._sandbox.output_kb << 10
        for said in self.said:
            del said[room:]

    def _hear(self, wait_s: float) -> set[int]:
        """Read what there is; gives the descriptors that had something to say."""
        spoke = {descriptor for descriptor, _ in self._poller.poll(wait_s * 1000)}
        for descriptor in spoke & set(self._open):
            said = os.read(descriptor, _CHUNK)
            self._open[descriptor].extend(said)
            if not said:
                self._poller.unregister(descriptor)
                del self._open[descriptor]
        return spoke

    def _too_much(self) -> bool:
        return sum(map(len, self.said)) > self._sandbox.output_kb << 10


def _memory(process: int) -> int:
    """Bytes that the descendants of `process` have filled and do not share with a file."""
    pages = 0
    for descendant in _descendants(process):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{descendant}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
            pages += resident - shared
    return pages * resource.getpagesize()


def _descendants(process: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                for child in map(int, file.read().split()):
                    yield child
                    yield from _descendants(child)
