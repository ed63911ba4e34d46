"""Standard output and error that outlive whoever reads them: a closed pipe or terminal, or a full disk, ends no run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAMES = {1: "standard output", 2: "standard error"}


class LastingFile(io.FileIO):
    """A file descriptor that takes all that is written, also when nothing can be written to it any longer.

    From then on it leads nowhere, for child processes as well; the other one of the two says so once.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            written = super().write(data)
            if written is None:  # somebody has made it non-blocking, and it is full
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
def lasting_output() -> Iterator[None]:
    """Let standard output and error outlive their readers; characters that they cannot encode are spelled out."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(sys.stdout, 1), _lasting(sys.stderr, 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO, number: int) -> TextIO:
    """Return a stream that writes where `stream` does, if that is file descriptor `number` itself; else `stream`."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with suppress(OSError):
        stream.flush()
        if stream.fileno() == number:
            buffer = io.BufferedWriter(LastingFile(number, "wb", closefd=False))
            return io.TextIOWrapper(
                buffer,
                stream.encoding,
                "backslashreplace",
                line_buffering=stream.line_buffering or stream.write_through,  # python -u has no buffer below
                write_through=stream.write_through,
            )
    return stream
