"""Standard output and error that survive a closed pipe, a closed terminal or a full disk without ending the run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from typing_extensions import Buffer

_NAMES = {1: "standard output", 2: "standard error"}


class BrokenPipeTolerantFile(io.FileIO):
    """File descriptor that accepts every write, even after its target is lost.

    After a failure the descriptor points to the null device, also for child processes. The other standard stream
    reports the loss once.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            written = super().write(data)
            if written is None:  # the pipe is full, and another process has made it non-blocking
                os.set_blocking(self.fileno(), True)
                written = super().write(data)
            return written
        except OSError as error:
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self.fileno())
            os.close(null_device)
            other = 3 - self.fileno()
            with suppress(OSError):
                os.write(other, f"marl: {_NAMES[self.fileno()]} is gone ({error}); the run goes on\n".encode())
            return memoryview(data).nbytes


@contextmanager
def tolerate_broken_output() -> Iterator[None]:
    """Make standard output and error resilient. Characters outside their encoding are written as escapes."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _broken_pipe_tolerant_stream(sys.stdout, 1), _broken_pipe_tolerant_stream(sys.stderr, 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _broken_pipe_tolerant_stream(stream: TextIO, descriptor: int) -> TextIO:
    """Return a resilient stream if `stream` writes to file descriptor `descriptor`; otherwise return `stream`."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with suppress(OSError):
        stream.flush()
        if stream.fileno() == descriptor:
            buffer = io.BufferedWriter(BrokenPipeTolerantFile(descriptor, "wb", closefd=False))
            # `python -u` sets write_through; lines are then flushed one by one, because a buffer would hold them back.
            line_buffering = stream.line_buffering or stream.write_through
            return io.TextIOWrapper(
                buffer,
                stream.encoding,
                "backslashreplace",
                line_buffering=line_buffering,
                write_through=stream.write_through,
            )
    return stream
