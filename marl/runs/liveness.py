"""State of a run (training, ended or died), found by reading its folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marl.runs.locks import lock_owner
from marl.runs.status import read_status
from marl.scenario.load import ScenarioError

SILENT_S = 10.0
"""Time without a new status after which a run has probably died or hangs [s]. It writes a status every second."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """State of a run, and a sentence with the evidence."""

    state: Literal["training", "silent", "complete", "stopped", "failed", "died", "not started"]
    words: str
    """Process and stage of a run in training, or the end of another run."""


def liveness(folder: Path, done: int, planned: int | None, now: float) -> Liveness:
    """Return the state of a run at the time `now`, in seconds since 1970.

    Args:
        folder: the run's folder.
        done: step of the newest row of metrics (0 if there is none).
        planned: number of steps of the run, or None if unknown.
    """
    try:
        status = read_status(folder)
    except ScenarioError:
        return _without_status(folder, done, planned, now)
    activity, silence = status.activity, format_duration(now - status.written)
    if not status.ended and now - status.written <= SILENT_S:
        stage = f"{activity.stage or 'getting ready'} for {format_duration(status.written - activity.since)}"
        return Liveness("training", f"process {status.process} on {status.machine}: {stage}")
    if owner := lock_owner(folder):
        if status.ended:  # by an earlier process than the owner
            return Liveness("training", f"process {owner} holds the folder and is getting ready")
        return Liveness("silent", f"process {owner} holds the folder, but has written nothing for {silence}")
    ago = f"{silence} ago"
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
        return Liveness("stopped", f"or died; its last row is {format_duration(now - written)} old")
    return Liveness("stopped", "or died")


def format_duration(seconds: float) -> str:
    """Return a duration in words, such as `3 min 20 s`."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    hours, days = total // 3600 % 24, total // 86400
    return f"{days} d {hours} h" if days else f"{hours} h {total // 60 % 60} min"
