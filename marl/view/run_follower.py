"""Observation of a run through its folder: new metrics, liveness and the latest recorded episode."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from marl.core.errors import FolderError
from marl.core.graph import Trajectory
from marl.runs.liveness import liveness
from marl.runs.metrics_tail import MetricsTail
from marl.runs.run_folder import RunFolder
from marl.runs.symlinks import path_within
from marl.scenario.load import ScenarioError
from marl.scenario.yaml_text import read_yaml_file
from marl.view.run_dashboard import RunSnapshot


class RunFollower:
    """Reader of a run that another process may be training. It only reads the folder and imports no plug-in."""

    def __init__(self, run: Path) -> None:
        """Start to follow a run.

        Raises:
            ScenarioError: if the folder contains no run.
        """
        if not (run / "scenario.yaml").is_file():
            raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
        self._run, self._home, self._tail = run, RunFolder(run), MetricsTail(run)
        self._planned = _planned_steps(run)
        self._episode: tuple[int, Trajectory] | None = None
        self._note = ""
        self._first = True

    def snapshot(self) -> RunSnapshot:
        """Return the current state of the run.

        Raises:
            FolderError: if the metrics cannot be read.
        """
        added = self._tail.update()
        rows = self._tail.rows
        # Listing the folder is slow for a long run, so later calls only look at the steps of new rows.
        recorded = self._home.recorded_steps()[-1:] if self._first else [int(row["step"]) for row in reversed(added)]
        self._first = False
        self._take_newest(recorded)
        step = int(rows[-1]["step"]) if rows else 0
        state = liveness(self._run, step, self._planned, time.time())
        return RunSnapshot(str(self._run), rows, self._planned, state, self._episode, self._note)

    def _take_newest(self, steps: list[int]) -> None:
        """Load the first episode of the first step in `steps` with recorded episodes."""
        for step in steps:
            if not (self._run / "trajectories" / f"{step:06d}.jsonl.zst").is_file():
                continue
            try:
                self._episode, self._note = (step, self._home.load_trajectory(step, 0)), ""
            except (ValueError, FolderError) as error:
                self._note = str(error)
            return


def _planned_steps(run: Path) -> int | None:
    """Return the number of steps in the resolved scenario, or None if it is missing or unreadable."""
    with suppress(ScenarioError, FolderError):
        data = read_yaml_file(path_within(run, "scenario.yaml"))
        schedule = data.get("schedule") if isinstance(data, dict) else None
        steps = schedule.get("steps") if isinstance(schedule, dict) else None
        return steps if type(steps) is int and steps > 0 else None
    return None
