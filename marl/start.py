"""Begin a run, or go on with one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from marl import checkpoint
from marl.folder import RunFolder
from marl.load import ScenarioError
from marl.loop import Interrupt, Monitor, Training
from marl.run import build
from marl.scenario import Scenario


def train(scenario: Scenario, folder: Path, how: Start, monitors: list[Monitor]) -> bool:
    """Train a scenario in a folder; returns whether it went to the end."""
    home = RunFolder(folder)
    step = how.prepare(home, scenario)
    training = Training(build(scenario), home, monitors)
    training.resume(step)
    with ExitStack() as opened, Interrupt() as stop:
        for monitor in monitors:
            monitor.begin(home)
            opened.callback(monitor.close)
            for note in how.notes:
                monitor.say(f"warning: {note}; going on from step {step}")
        return training(stop)


class Start:
    """Whether to begin or to go on: `resume` is None (begin), "auto" or a step's checkpoint folder."""

    def __init__(self, resume: str | None = None, *, force: bool = False, overwrite: bool = False) -> None:
        self._resume, self._force, self._overwrite = resume, force, overwrite
        self.notes: list[str] = []

    def prepare(self, folder: RunFolder, scenario: Scenario) -> int:
        """Make or check the folder; returns the step to go on from.

        Raises:
            ScenarioError: if a run is in the way, or was another one; says what changed.
            CheckpointError: if the checkpoint to go on from is damaged.
        """
        if folder.started and self._overwrite:
            folder.clear()
        if not folder.started:
            if self._resume not in (None, "auto"):
                raise ScenarioError(f"--resume {self._resume}: no run in {folder.path}")
            folder.create(scenario)
            return 0
        if self._resume is None:
            raise ScenarioError(
                f"{folder.path} holds a run: go on with --resume auto, start over with --overwrite, "
                "or choose another folder with --out"
            )
        changed = folder.changes(scenario)
        if changed and not self._force:
            lines = "\n".join(f"  {line}" for line in changed)
            raise ScenarioError(
                f"{folder.path} was started with another scenario (--force goes on all the same):\n{lines}"
            )
        step = self._step(folder)
        if changed:
            folder.create(scenario)
        return step

    def _step(self, folder: RunFolder) -> int:
        if self._resume == "auto":
            step, self.notes = folder.latest()
            return step
        wanted = Path(str(self._resume)).name
        if not wanted.isdigit():
            raise ScenarioError(
                f"--resume {self._resume}: give 'auto', or a checkpoint such as {folder.checkpoints}/000100"
            )
        checkpoint.inspect(folder.checkpoints / wanted)
        return int(wanted)
