"""Status file of a run, rewritten every second. After the process dies, the file shows its last stage."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from marl.core.config import shorten
from marl.core.errors import RunFolderError
from marl.host.data_files import one_line_error_message, write_atomically
from marl.rollout.base import ProcessActivity
from marl.runs.symlinks import path_within
from marl.scenario.load import ScenarioError

STATUS_FILE = "status.json"
_EVERY_S = 1.0
"""Interval between two writes of the status file [s]."""
_MAX_BYTES = 10 << 20
_MAX_PROBLEM_CHARACTERS = 2000
"""Maximum length of the error message in the status file."""


@dataclass(frozen=True, slots=True)
class RunActivity:
    """Progress and current stage of a run."""

    step: int
    """Number of finished training steps."""
    steps: int
    """Planned number of training steps."""
    stage: str
    """Name of the current stage of a step, or "" before the first step."""
    since: float
    """Time at which the stage started [s since 1970]."""
    simulators: Annotated[tuple[ProcessActivity, ...], Field(max_length=100_000)] = ()
    learners: Annotated[tuple[ProcessActivity, ...], Field(max_length=100_000)] = ()


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Contents of a run's status file."""

    machine: str
    process: int
    """Id of the training process."""
    written: float
    """Time at which the status was written [s since 1970]."""
    ended: bool
    """True if the training process ended the run itself, False while it trains or if it died."""
    activity: RunActivity
    problem: str = ""
    """Message of the error that ended the run, or "" if there was none."""


_CODEC = TypeAdapter(RunStatus)


@contextmanager
def write_status_periodically(folder: Path, read_activity: Callable[[], RunActivity]) -> Iterator[None]:
    """Write the status file of the run in `folder` every second while this context lasts, and once at its end.

    `read_activity` returns the current activity. Errors of writing are ignored, because a folder that cannot be written
    ends the run when metrics are written.
    """
    done, problem, original_folder = threading.Event(), "", folder.stat()

    def write_status() -> None:
        status = RunStatus(socket.gethostname(), os.getpid(), time.time(), done.is_set(), read_activity(), problem)
        with suppress(OSError):
            # If another run has replaced the folder meanwhile, its status file is left alone.
            if os.path.samestat(original_folder, folder.stat()):
                write_atomically(folder / STATUS_FILE, _CODEC.dump_json(status))

    def write_status_until_done() -> None:
        while not done.wait(_EVERY_S):
            write_status()

    write_status()
    thread = threading.Thread(target=write_status_until_done, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if error := sys.exception():
            problem = shorten(f"{type(error).__name__}: {error}", _MAX_PROBLEM_CHARACTERS)
        done.set()
        thread.join()
        write_status()


def read_status(folder: Path) -> RunStatus:
    """Return the newest status in a run's `folder`.

    Raises:
        ScenarioError: if the status file is missing, damaged, a link that leads out of the folder, or a pipe.
    """
    try:
        with path_within(folder, STATUS_FILE).open("rb") as file:
            return _CODEC.validate_json(file.read(_MAX_BYTES))
    except OSError:
        raise ScenarioError(f"{folder}: no {STATUS_FILE}: no run was trained here, or by an older version") from None
    except RunFolderError as error:
        raise ScenarioError(str(error)) from None
    except ValueError as error:
        raise ScenarioError(f"{folder / STATUS_FILE} is damaged: {one_line_error_message(error)}") from None
