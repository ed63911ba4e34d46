"""Status file of a run, rewritten every second. After the process dies, the file shows its last stage."""

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

from marl.core.config import shorten
from marl.host.data_files import write_atomically
from marl.rollout.base import ProcessStatus
from marl.scenario.load import ScenarioError

STATUS_FILE = "status.json"
_EVERY_S = 1.0
_MAX_BYTES = 10 << 20
_MAX_PROBLEM_CHARACTERS = 2000
"""Maximum length of the error message in the file."""


@dataclass(frozen=True, slots=True)
class RunActivity:
    """Progress and current stage of a run."""

    step: int
    """Number of finished steps."""
    steps: int
    """Number of planned steps."""
    stage: str
    since: float
    """Start of the stage [s since 1970]."""
    simulators: Annotated[tuple[ProcessStatus, ...], Field(max_length=100_000)] = ()
    learners: Annotated[tuple[ProcessStatus, ...], Field(max_length=100_000)] = ()


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Contents of the status file."""

    machine: str
    process: int
    written: float
    """Time of writing [s since 1970]."""
    ended: bool
    """True if the process closed the run in order. It stays False if the process dies."""
    activity: RunActivity
    problem: str = ""
    """Error that ended the run, or "" without one."""


_CODEC = TypeAdapter(RunStatus)


@contextmanager
def writing_status(folder: Path, look: Callable[[], RunActivity]) -> Iterator[None]:
    """Write the status returned by `look` every second while this context lasts, and once at its end.

    Errors of writing are ignored here: a folder that cannot be written ends the run when metrics are written.
    """
    done, problem, held = threading.Event(), "", folder.stat()

    def write() -> None:
        status = RunStatus(socket.gethostname(), os.getpid(), time.time(), done.is_set(), look(), problem)
        with suppress(OSError):
            if os.path.samestat(held, folder.stat()):
                write_atomically(folder / STATUS_FILE, json.dumps(asdict(status)).encode())

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
            problem = shorten(f"{type(error).__name__}: {error}", _MAX_PROBLEM_CHARACTERS)
        done.set()
        thread.join()
        write()


def read_status(folder: Path) -> RunStatus:
    """Return the newest status in a run's `folder`.

    Raises:
        ScenarioError: if the status file is missing or damaged.
    """
    try:
        with (folder / STATUS_FILE).open("rb") as file:
            return _CODEC.validate_json(file.read(_MAX_BYTES))
    except OSError:
        raise ScenarioError(f"{folder}: no {STATUS_FILE}: no run was trained here, or by an older version") from None
    except ValueError as error:
        raise ScenarioError(f"{folder / STATUS_FILE} is damaged: {str(error).partition(chr(10))[0]}") from None
