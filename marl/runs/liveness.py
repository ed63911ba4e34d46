"""State of a run (it goes on, has ended or has died) from its folder alone; nothing is written there."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marl.runs.status import RunStatus, read_status
from marl.scenario.load import ScenarioError

SILENT_S = 10.0
"""Time after which a run that should write its status every second has probably died, or hangs."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """State of a run, and what it follows from."""

    state: Literal["training", "silent", "complete", "stopped", "failed", "died", "not started"]
    words: str
    """The process that trains, or the end of the run."""


def lock_owner(folder: Path) -> str | None:
    """Return the number of the process that holds a run's folder, as it wrote it; None if nobody does.

    For a moment this takes a shared lock, in which a run that begins at that very moment would fail: ask only where
    the status does not tell.
    """
    try:
        file = os.open(folder / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        written = os.read(file, 20).decode(errors="replace").strip()
        return written if written.isdigit() else "of unknown number"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(file)
    return None


def liveness(folder: Path, done: int, planned: int | None, now: float) -> Liveness:
    """Return the state of a run at the time `now`, in seconds since 1970.

    Args:
        folder: the run's folder.
        done: step of its newest row; 0 if there is none.
        planned: its number of steps; None if unknown.
    """
    status = None
    with suppress(ScenarioError):
        status = read_status(folder)
    if status is None:
        return _without_status(folder, done, planned, now)
    if status.ended or now - status.written > SILENT_S:
        owner = lock_owner(folder)
        return _ended(status, now) if owner is None else _held(owner, status, now)
    activity = status.activity
    stage = f"{activity.stage or 'getting ready'} for {duration(status.written - activity.since)}"
    return Liveness("training", f"process {status.process} on {status.machine}: {stage}")


def _held(owner: str, status: RunStatus, now: float) -> Liveness:
    if status.ended:  # by another process, before
        return Liveness("training", f"process {owner} holds the folder and is getting ready")
    silent = duration(now - status.written)
    return Liveness("silent", f"process {owner} holds the folder, but has written nothing for {silent}")


def _ended(status: RunStatus, now: float) -> Liveness:
    activity, ago = status.activity, f"{duration(now - status.written)} ago"
    if not status.ended:
        stage = f" in stage {activity.stage!r}" if activity.stage else ""
        who = f"process {status.process} on {status.machine}"
        return Liveness("died", f"{who} was last heard of {ago}{stage}, and did not close the run")
    if status.problem:
        return Liveness("failed", f"{ago}, by {status.problem}")
    if activity.step >= activity.steps:
        return Liveness("complete", ago)
    return Liveness("stopped", f"{ago}, in order: it was interrupted, or gave up waiting for an improvement")


def _without_status(folder: Path, done: int, planned: int | None, now: float) -> Liveness:
    if owner := lock_owner(folder):
        return Liveness("training", f"process {owner} holds the folder and is getting ready")
    if planned is not None and done >= planned:
        return Liveness("complete", "")
    if not done:
        return Liveness("not started", "it has no row, and nobody trains it")
    with suppress(OSError):
        written = (folder / "metrics.jsonl").stat().st_mtime
        return Liveness("stopped", f"or died; its last row is {duration(now - written)} old")
    return Liveness("stopped", "or died")


def duration(seconds: float) -> str:
    """Return a length of time in words, such as `3 min 20 s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    hours, days = whole // 3600 % 24, whole // 86400
    return f"{days} d {hours} h" if days else f"{hours} h {whole // 60 % 60} min"
