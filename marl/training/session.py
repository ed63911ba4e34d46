"""One sitting of training: begin a run or resume one, and follow it on the console, in event files and by trackers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marl.errors import OutOfMemory, is_out_of_memory
from marl.metrics.alarms import Collapse
from marl.runs import checkpoint
from marl.runs.best_checkpoint import Best
from marl.runs.run_folder import RunFolder, dump
from marl.runs.status import status_written
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.scenario.trust import remember
from marl.training.build import build
from marl.training.failures import memory_advice
from marl.training.interrupt import LEAVE_S, Interrupt
from marl.training.loop import Training
from marl.training.placement import Placement
from marl.training.run import Run
from marl.types import Metrics
from marl.view.closing_report import closing_report
from marl.view.console import Monitor, Monitors, Screen, console_monitor
from marl.view.trackers import EventFiles, Tracker


def train(
    scenario: Scenario,
    folder: Path,
    start: RunStart,
    monitors: Sequence[Monitor],
    stop: Interrupt | None = None,
    placement: Placement | None = None,
) -> bool:
    """Train a scenario in a folder, which is locked meanwhile; return True if it went to the end.

    `placement`: where its parts live; default: all in this process.

    A request to `stop`, which the caller has entered, is answered at once until the first step, and then by a
    checkpoint of the steps done.
    """
    home = RunFolder(folder)
    start.expect(home)
    with home.held():
        return _train(scenario, home, start, Monitors(monitors), stop or Interrupt(), placement)


def _train(
    scenario: Scenario,
    home: RunFolder,
    start: RunStart,
    monitors: Monitors,
    stop: Interrupt,
    placement: Placement | None,
) -> bool:
    # Until the first step there is nothing to finish.
    with stop.patient(0.0):
        step = start.prepare(home, scenario)
        if step >= scenario.schedule.steps and home.unmeasured(step) is None:
            home.rewind(step)
            best = Best.of(scenario.evaluate, home.rows())
            checkpoint.tidy(home.checkpoints, checkpoint.Retention(scenario.checkpoint.keep, best.step))
            with _followed(home, monitors, [*start.notes, f"complete at step {step}: nothing to do"]):
                return True
        # Weights are loaded before anything is cut back: what cannot be loaded changes no file.
        training = Training(_built(scenario, placement), home, [monitors])
        training.resume(step)
        # Weights and libraries are there to stay: the collector need not walk them again at every step's garbage.
        gc.collect()
        gc.freeze()
    with _followed(home, monitors, start.notes), status_written(home.path, training.activity):
        return training(stop)


def _built(scenario: Scenario, placement: Placement | None) -> Run:
    """Return the run, built.

    Raises:
        OutOfMemory: if its models do not fit into memory.
    """
    try:
        return build(scenario, placement)
    except (RuntimeError, MemoryError, OSError) as error:
        if is_out_of_memory(error):
            raise OutOfMemory(memory_advice(scenario, "load", error)) from error
        raise


@contextmanager
def _followed(home: RunFolder, monitors: Monitors, notes: Sequence[str]) -> Iterator[None]:
    monitors.begin(home)
    try:
        for note in notes:
            monitors.say(note)
        yield
    finally:
        monitors.close()


class RunStart:
    """Way in which a run starts: `resume` is None (begin), "auto" or a step's checkpoint folder."""

    def __init__(self, resume: str | None = None, *, force: bool = False, overwrite: bool = False) -> None:
        if resume is not None and overwrite:
            raise ScenarioError("--resume goes on with a run and --overwrite removes it: give one of them")
        self._resume, self._force, self._overwrite = resume, force, overwrite
        self.notes: list[str] = []

    def expect(self, folder: RunFolder) -> None:
        """Check the folder before anything is made there.

        Raises:
            ScenarioError: if a checkpoint is asked for where there is no run.
        """
        if self._resume not in (None, "auto") and not folder.started:
            raise ScenarioError(f"--resume {self._resume}: no run in {folder.path}")

    def prepare(self, folder: RunFolder, scenario: Scenario) -> int:
        """Make or check the folder; return the step to go on from.

        Raises:
            ScenarioError: if a run is in the way, or was another one; says what changed.
            CheckpointError: if the checkpoint to go on from is damaged.
            FolderError: if the folder cannot be written.
        """
        if folder.started and self._overwrite:
            folder.clear()
        if not folder.started:
            folder.create(scenario)
            return 0
        if self._resume is None:
            raise ScenarioError(
                f"{folder.path} holds a run: go on with --resume auto, start over with --overwrite, "
                "or choose another folder with --out"
            )
        changed = self._changes(folder, scenario)
        step = self._step(folder)
        if changed:
            folder.create(scenario)
        self.notes.append(f"going on from step {step}")
        return step

    def _changes(self, folder: RunFolder, scenario: Scenario) -> list[str]:
        changed = folder.changes(scenario)
        if changed and not self._force:
            lines = "\n".join(f"  {line}" for line in changed)
            raise ScenarioError(
                f"{folder.path} was started with another scenario (--force goes on all the same):\n{lines}"
            )
        return changed

    def _step(self, folder: RunFolder) -> int:
        if self._resume == "auto":
            step, problems = folder.latest()
            self.notes += [f"WARNING: {problem}; it is set aside" for problem in problems]
            return step
        wanted = Path(str(self._resume))
        elsewhere = len(wanted.parts) > 1 and wanted.parent.resolve() != folder.checkpoints.resolve()
        if not (wanted.name.isascii() and wanted.name.isdigit()) or elsewhere:
            raise ScenarioError(
                f"--resume {self._resume}: give 'auto', or a checkpoint of this run such as {folder.checkpoints}/000100"
            )
        step = int(wanted.name)
        checkpoint.inspect(folder.checkpoints / f"{step:06d}")
        return step


@dataclass(frozen=True, slots=True)
class Callback(Monitor):
    """Monitor that hands every step's metrics to a function. What the function raises ends the run."""

    function: Callable[[int, Metrics], None]
    dispensable: ClassVar[tuple[type[Exception], ...]] = ()

    def log(self, step: int, metrics: Metrics) -> None:
        self.function(step, metrics)


@dataclass(frozen=True, slots=True)
class Following:
    """Ways in which a run is followed, apart from its files."""

    on_step: Callable[[int, Metrics], None] | None = None
    """Called with (steps done, metrics) after every step."""
    episodes: bool = True
    """Show a sampled episode now and then on a terminal."""


def session(
    scenario: Scenario,
    folder: Path,
    start: RunStart,
    following: Following = Following(),
    stop: Interrupt | None = None,
    placement: Placement | None = None,
) -> bool:
    """Train with progress on the console, event files and trackers; return True if it went to the end.

    Ctrl-C, or a signal that asks to stop, ends it with a checkpoint; a second Ctrl-C, or one before the first step, at
    once, without.
    """
    home = RunFolder(folder)
    remember(dump(scenario), home.path)
    watch = console_monitor(Screen(), scenario.schedule.steps, home.path.name, episodes=following.episodes)
    monitors: list[Monitor] = [watch, EventFiles(), *map(Tracker, scenario.track)]
    monitors += [Callback(following.on_step)] if following.on_step else []
    closing = Monitors([watch])
    with stop or Interrupt() as request:
        try:
            finished = train(scenario, home.path, start, monitors, request, placement)
        except KeyboardInterrupt:
            finished = False
        except Collapse:
            closing.say(closing_report(home, False, scenario.evaluate))
            raise
        with request.patient(LEAVE_S):
            closing.say(closing_report(home, finished, scenario.evaluate))
    return finished
