"""State of a run (training, ended, stopped, died, …), found by reading its folder.

The commands `status` and `top` and the page show this one state.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from marl.core.errors import RunFolderError
from marl.runs.locks import lock_owner
from marl.runs.status import read_status
from marl.runs.symlinks import path_within
from marl.scenario.load import ScenarioError
from marl.scenario.yaml_text import read_yaml_file

SILENT_S = 10.0
"""Time since the last status after which a run has probably died or hangs [s]. A run writes a status every second."""


@dataclass(frozen=True, slots=True)
class RunLiveness:
    """State of a run, with details for display."""

    state: Literal["training", "silent", "ended", "stopped", "failed", "died", "not started", "folder gone"]
    """State (`ended`: all planned steps are done; `silent`: a process holds the lock but has not written for long)."""
    details: str
    """Text on the process and stage of a training run, or on the time and cause of a run's end."""
    newest_row_s: float | None = None
    """Age of the newest row of metrics [s], or None if there is no row."""

    @property
    def row_age(self) -> str:
        """Age of the newest row of metrics as text, or "" if there is no row."""
        return "" if self.newest_row_s is None else format_duration(self.newest_row_s)

    @property
    def description(self) -> str:
        """Text of `details` and the age of the newest row of metrics."""
        return "; ".join(filter(None, [self.details, f"newest row {self.row_age} old" if self.row_age else ""]))


def determine_liveness(run_path: Path, newest_step: int, planned_steps: int | None, now_unix_s: float) -> RunLiveness:
    """Return the state of a run at the time `now_unix_s`, with the age of its newest row.

    Args:
        run_path: the run's folder.
        newest_step: step of the newest row of metrics, or 0 without a row.
        planned_steps: number of steps of the run, or None if unknown.
        now_unix_s: time in seconds since 1970.
    """
    if not run_path.is_dir():
        return RunLiveness("folder gone", f"{run_path} is not there: it was moved or removed")
    state = _liveness_from_status_and_lock(run_path, newest_step, planned_steps, now_unix_s)
    with suppress(OSError):
        return replace(state, newest_row_s=max(0.0, now_unix_s - (run_path / "metrics.jsonl").stat().st_mtime))
    return state


def read_planned_steps(folder: Path) -> int | None:
    """Return the planned number of steps from a run's scenario.yaml, or None if the file is missing or unreadable."""
    with suppress(ScenarioError, RunFolderError):
        match read_yaml_file(path_within(folder, "scenario.yaml")):
            case {"schedule": {"steps": steps}} if type(steps) is int and steps > 0:
                return steps
    return None


def _liveness_from_status_and_lock(
    run_path: Path, newest_step: int, planned_steps: int | None, now_unix_s: float
) -> RunLiveness:
    """Return the state of a run whose folder exists, from the status file and the lock."""
    try:
        status = read_status(run_path)
    except ScenarioError:
        # There is no status file: the run has not started yet, or was written by an older version of marl.
        if owner := lock_owner(run_path):
            return RunLiveness("training", f"process {owner} holds the folder and is getting ready")
        if planned_steps is not None and newest_step >= planned_steps:
            return RunLiveness("ended", "")
        if not newest_step:
            return RunLiveness("not started", "it has no row, and nobody trains it")
        return RunLiveness("stopped", "or died")
    activity, silence = status.activity, format_duration(now_unix_s - status.written)
    if not status.ended and now_unix_s - status.written <= SILENT_S:
        stage = f"{activity.stage or 'getting ready'} for {format_duration(status.written - activity.since)}"
        return RunLiveness("training", f"process {status.process} on {status.machine}: {stage}")
    if owner := lock_owner(run_path):
        if status.ended:  # the status is that of an earlier process
            return RunLiveness("training", f"process {owner} holds the folder and is getting ready")
        return RunLiveness("silent", f"process {owner} holds the folder, but has written nothing for {silence}")
    ago = f"{silence} ago"
    if not status.ended:
        stage = f" in stage {activity.stage!r}" if activity.stage else ""
        who = f"process {status.process} on {status.machine}"
        return RunLiveness("died", f"{who} was last heard of {ago}{stage}, and did not close the run")
    if status.problem:
        return RunLiveness("failed", f"{ago}, by {status.problem}")
    if activity.step >= activity.steps:
        return RunLiveness("ended", ago)
    return RunLiveness("stopped", f"{ago}, in order: it was interrupted, or gave up waiting for an improvement")


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as `3 min 20 s`."""
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    hours, days = total // 3600 % 24, total // 86400
    return f"{days} d {hours} h" if days else f"{hours} h {total // 60 % 60} min"
