"""Status of a run: a small file in its folder, written anew every second, that stays when the run has died."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from marl.config import cut
from marl.data_files import write_whole
from marl.rollout.base import PartStatus
from marl.scenario.load import ScenarioError

FILE = "status.json"
_EVERY_S = 1.0
_MAX_BYTES = 10 << 20
_LONGEST_PROBLEM = 2000
"""Most characters of an error that are written."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a run at one moment."""

    step: int
    """Steps done."""
    steps: int
    stage: str
    since: float
    """Time, in seconds since 1970, at which the stage began."""
    simulators: Annotated[tuple[PartStatus, ...], Field(max_length=100_000)] = ()
    learners: Annotated[tuple[PartStatus, ...], Field(max_length=100_000)] = ()


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One writing of the file."""

    machine: str
    process: int
    written: float
    """Time in seconds since 1970."""
    ended: bool
    """True if the run has left its folder in order."""
    activity: Activity
    problem: str = ""
    """The error that ended the run; "" if none did."""


_CODEC = TypeAdapter(RunStatus)


@contextmanager
def status_written(folder: Path, look: Callable[[], Activity]) -> Iterator[None]:
    """Write what `look` returns into a run's folder every second as long as this context lasts, and at its end.

    A folder that cannot be written, or was replaced by another one, ends the run by its own files, not by this one.
    """
    done, problem, held = threading.Event(), "", folder.stat()

    def write() -> None:
        status = RunStatus(socket.gethostname(), os.getpid(), time.time(), done.is_set(), look(), problem)
        with suppress(OSError):
            if os.path.samestat(held, folder.stat()):
                write_whole(folder / FILE, json.dumps(asdict(status)).encode())

    def keep_writing() -> None:
        while not done.wait(_EVERY_S):
            write()

    write()
    thread = threading.Thread(target=keep_writing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if error := sys.exception():
            problem = cut(f"{type(error).__name__}: {error}", _LONGEST_PROBLEM)
        done.set()
        thread.join()
        write()


def read_status(folder: Path) -> RunStatus:
    """Return what was written last.

    Raises:
        ScenarioError: if the run has no such file, or it is damaged.
    """
    try:
        with (folder / FILE).open("rb") as file:
            return _CODEC.validate_json(file.read(_MAX_BYTES))
    except OSError:
        raise ScenarioError(f"{folder}: no {FILE}: no run was trained here, or by an older version") from None
    except ValueError as error:
        raise ScenarioError(f"{folder / FILE} is damaged: {str(error).partition(chr(10))[0]}") from None
