"""Observation of a run through its folder: new metrics, liveness and the latest recorded episode."""

from __future__ import annotations

import time
from pathlib import Path

from marl.core.errors import RunFolderError
from marl.core.graph import Trajectory
from marl.runs.liveness import determine_liveness, read_planned_steps
from marl.runs.metrics_tail import MetricsTail
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
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
        self._planned = read_planned_steps(run)
        self._episode: tuple[int, Trajectory] | None = None
        self._note = ""
        self._is_first_snapshot = True

    def read_run_snapshot(self) -> RunSnapshot:
        """Return the current state of the run.

        Raises:
            RunFolderError: if the metrics cannot be read.
        """
        added = self._tail.read_new_rows()
        rows = self._tail.rows
        # Listing a long run's folder is slow, so after the first call only steps of new rows are looked up.
        steps = [int(row["step"]) for row in reversed(added)]
        if self._is_first_snapshot:
            steps = self._home.recorded_steps()[-1:]
        self._is_first_snapshot = False
        # The dashboard shows the first episode of the newest recorded step.
        for step in steps:
            if (self._run / "trajectories" / f"{step:06d}.jsonl.zst").is_file():
                try:
                    self._episode, self._note = (step, self._home.load_trajectory(step, 0)), ""
                except (ValueError, RunFolderError) as error:
                    self._note = str(error)
                break
        step = int(rows[-1]["step"]) if rows else 0
        state = determine_liveness(self._run, step, self._planned, time.time())
        return RunSnapshot(str(self._run), rows, self._planned, state, self._episode, self._note)
