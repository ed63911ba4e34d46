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


class ResilientFile(io.FileIO):
    """File descriptor that accepts every write, even after its target is lost.

    After a failure the descriptor points to the null device, also for child processes. The other standard stream
    reports the loss once.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            written = super().write(data)
            if written is None:  # another process made the shared pipe non-blocking, and it is full
                os.set_blocking(self.fileno(), True)
                written = super().write(data)
            return written
        except OSError as error:
            self._lose(error)
            return memoryview(data).nbytes

    def _lose(self, error: OSError) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        other = 3 - self.fileno()
        with suppress(OSError):
            os.write(other, f"marl: {_NAMES[self.fileno()]} is gone ({error}); the run goes on\n".encode())


@contextmanager
def resilient_output() -> Iterator[None]:
    """Make standard output and error resilient. Characters outside their encoding are written as escapes."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(sys.stdout, 1), _lasting(sys.stderr, 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO, number: int) -> TextIO:
    """Return a resilient stream if `stream` writes to file descriptor `number`; otherwise return `stream`."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with suppress(OSError):
        stream.flush()
        if stream.fileno() == number:
            buffer = io.BufferedWriter(ResilientFile(number, "wb", closefd=False))
            return io.TextIOWrapper(
                buffer,
                stream.encoding,
                "backslashreplace",
                line_buffering=stream.line_buffering
                or stream.write_through,  # python -u sets write_through; a buffer would hold the lines back
                write_through=stream.write_through,
            )
    return stream
