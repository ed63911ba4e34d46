"""Follows a run from its folder: what was written since, its state, and the last episode that it recorded."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from marl.errors import FolderError
from marl.graph import Trajectory
from marl.runs.links import inside
from marl.runs.liveness import liveness
from marl.runs.row_tail import RowTail
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.scenario.yaml_text import read_yaml_file
from marl.view.run_frame import RunView


class RunWatch:
    """A run that may be trained by another process meanwhile. Its folder is only read, and no part is imported."""

    def __init__(self, run: Path) -> None:
        """Begin to follow a run.

        Raises:
            ScenarioError: if there is none.
        """
        if not (run / "scenario.yaml").is_file():
            raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
        self._run, self._home, self._tail = run, RunFolder(run), RowTail(run)
        self._planned = _planned_steps(run)
        self._episode: tuple[int, Trajectory] | None = None
        self._note = ""
        self._first = True

    def look(self) -> RunView:
        """Return the run as it is now.

        Raises:
            FolderError: if its metrics cannot be read.
        """
        added = self._tail.update()
        rows = self._tail.rows
        # Afterwards the steps of new rows are enough: a long run's folder has very many files.
        recorded = self._home.recorded()[-1:] if self._first else [int(row["step"]) for row in reversed(added)]
        self._first = False
        self._take_newest(recorded)
        step = int(rows[-1]["step"]) if rows else 0
        state = liveness(self._run, step, self._planned, time.time())
        return RunView(str(self._run), rows, self._planned, state, self._episode, self._note)

    def _take_newest(self, steps: list[int]) -> None:
        """Read the first episode of the newest of these steps of which episodes were recorded."""
        for step in steps:
            if not (self._run / "trajectories" / f"{step:06d}.jsonl.zst").is_file():
                continue
            try:
                self._episode, self._note = (step, self._home.episode(step, 0)), ""
            except (ValueError, FolderError) as error:
                self._note = str(error)
            return


def _planned_steps(run: Path) -> int | None:
    """Return the number of steps in the resolved scenario; None if it does not say."""
    with suppress(ScenarioError, FolderError):
        data = read_yaml_file(inside(run, "scenario.yaml"))
        schedule = data.get("schedule") if isinstance(data, dict) else None
        steps = schedule.get("steps") if isinstance(schedule, dict) else None
        return steps if type(steps) is int and steps > 0 else None
    return None
