"""Training of one scenario in one folder: begin or resume the run, and report progress while it trains."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marl.core.errors import OutOfMemory, is_out_of_memory
from marl.core.types import Metrics
from marl.metrics.alarms import CollapseError
from marl.runs import checkpoint
from marl.runs.best_checkpoint import BestTracker
from marl.runs.run_folder import RunFolder, to_yaml
from marl.runs.status import writing_status
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.scenario.trust import store_consent
from marl.training.build import build
from marl.training.failure_advice import memory_advice
from marl.training.loop import TrainingLoop
from marl.training.placement import Placement
from marl.training.stop_request import LEAVE_S, StopRequest
from marl.view.closing_report import closing_report
from marl.view.console import Monitor, MonitorGroup, StdoutConsole, console_monitor
from marl.view.trackers import ExperimentTracker, TensorBoardEvents


def train_in_folder(
    scenario: Scenario,
    folder: Path,
    start: RunStart,
    monitors: Sequence[Monitor],
    stop: StopRequest | None = None,
    placement: Placement | None = None,
) -> bool:
    """Train a scenario in a folder, which is locked meanwhile; return True if training reached its last step.

    Args:
        stop: stop request that the caller has entered. Before the first step it ends the process at once, later after
            a checkpoint of the completed steps.
        placement: location of engines, simulators and learners (default: this process).

    Raises:
        OutOfMemory: if the models do not fit into memory.
    """
    home, stop, monitor = RunFolder(folder), stop or StopRequest(), MonitorGroup(monitors)
    start.expect(home)
    with home.locked():
        with stop.grace_period(0.0):
            step = start.prepare(home, scenario)
            if step >= scenario.schedule.steps and home.unevaluated_metrics(step) is None:
                home.rewind(step)
                best = BestTracker.from_rows(scenario.evaluate, home.rows())
                checkpoint.prune(home.checkpoints, checkpoint.Retention(scenario.checkpoint.keep, best.step))
                with _reporting(home, monitor, [*start.notes, f"complete at step {step}: nothing to do"]):
                    return True
            # Weights are loaded before anything is cut off: a run whose weights cannot be loaded keeps all its files.
            try:
                run = build(scenario, placement)
            except (RuntimeError, MemoryError, OSError) as error:
                if is_out_of_memory(error):
                    raise OutOfMemory(memory_advice(scenario, "load", error)) from error
                raise
            loop = TrainingLoop(run, home, [monitor])
            loop.resume(step)
            # Weights and libraries live until the end: the garbage collector need not traverse them in every step.
            gc.collect()
            gc.freeze()
        with _reporting(home, monitor, start.notes), writing_status(home.path, loop.activity):
            return loop(stop)


@contextmanager
def _reporting(home: RunFolder, monitor: MonitorGroup, notes: Sequence[str]) -> Iterator[None]:
    """Open the monitors for the body of a `with` statement, and print `notes` first."""
    monitor.begin(home)
    try:
        for note in notes:
            monitor.say(note)
        yield
    finally:
        monitor.close()


class RunStart:
    """Start of a run: a new run, or one resumed from a checkpoint."""

    def __init__(self, resume: str | None = None, *, force: bool = False, overwrite: bool = False) -> None:
        """Store the user's choice.

        Args:
            resume: None for a new run, "auto" for the newest intact checkpoint, or the folder of a checkpoint.
            force: resume although the scenario changed.
            overwrite: remove the run in the folder first.
        """
        if resume is not None and overwrite:
            raise ScenarioError("--resume goes on with a run and --overwrite removes it: give one of them")
        self._resume, self._force, self._overwrite = resume, force, overwrite
        self.notes: list[str] = []
        """Sentences to print when training begins, filled by `prepare`."""

    def expect(self, folder: RunFolder) -> None:
        """Check the folder before any file is written.

        Raises:
            ScenarioError: if a checkpoint is given and the folder holds no run.
        """
        if self._resume not in (None, "auto") and not folder.has_run:
            raise ScenarioError(f"--resume {self._resume}: no run in {folder.path}")

    def prepare(self, folder: RunFolder, scenario: Scenario) -> int:
        """Create or check the run's folder, and return the step from which training continues.

        Raises:
            ScenarioError: if the folder holds another run, or a run of another scenario; lists the changed settings.
            CheckpointError: if the chosen checkpoint is damaged.
            FolderError: if the folder cannot be written.
        """
        if folder.has_run and self._overwrite:
            folder.clear()
        if not folder.has_run:
            folder.create(scenario)
            return 0
        if self._resume is None:
            raise ScenarioError(
                f"{folder.path} holds a run: go on with --resume auto, start over with --overwrite, "
                "or choose another folder with --out"
            )
        differences = folder.setting_differences(scenario)
        if differences and not self._force:
            lines = "\n".join(f"  {line}" for line in differences)
            raise ScenarioError(
                f"{folder.path} was started with another scenario (--force goes on all the same):\n{lines}"
            )
        step = self._checkpoint_step(folder)
        # The scenario is replaced last, so that a missing checkpoint leaves the folder unchanged.
        if differences:
            folder.create(scenario)
        self.notes.append(f"going on from step {step}")
        return step

    def _checkpoint_step(self, folder: RunFolder) -> int:
        """Return the step of the checkpoint to resume."""
        if self._resume == "auto":
            step, problems = folder.latest_checkpoint()
            self.notes += [f"WARNING: {problem}; it is set aside" for problem in problems]
            return step
        path = Path(str(self._resume))
        elsewhere = len(path.parts) > 1 and path.parent.resolve() != folder.checkpoints.resolve()
        # `isdigit` alone accepts superscripts, which `int` refuses.
        if not (path.name.isascii() and path.name.isdigit()) or elsewhere:
            raise ScenarioError(
                f"--resume {self._resume}: give 'auto', or a checkpoint of this run such as {folder.checkpoints}/000100"
            )
        step = int(path.name)
        checkpoint.verify_sizes(folder.checkpoints / f"{step:06d}")
        return step


@dataclass(frozen=True, slots=True)
class Callback(Monitor):
    """Monitor that passes every step's metrics to a function. An exception raised by the function ends the run."""

    function: Callable[[int, Metrics], None]
    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def log(self, step: int, metrics: Metrics) -> None:
        self.function(step, metrics)


@dataclass(frozen=True, slots=True)
class ProgressOptions:
    """Options of progress reports beside the files of the run."""

    on_step: Callable[[int, Metrics], None] | None = None
    """Function called with (completed steps, metrics) after every step."""
    episodes: bool = True
    """Print a sampled episode from time to time if the output is a terminal."""


def train_with_monitors(
    scenario: Scenario,
    folder: Path,
    start: RunStart,
    progress: ProgressOptions = ProgressOptions(),
    stop: StopRequest | None = None,
    placement: Placement | None = None,
) -> bool:
    """Train with console output, event files and trackers; return True if training reached its last step.

    Ctrl-C and termination signals end training after a checkpoint. A second Ctrl-C, or one before the first step, ends
    training at once.
    """
    home = RunFolder(folder)
    store_consent(to_yaml(scenario), home.path)
    console = console_monitor(StdoutConsole(), scenario.schedule.steps, home.path.name, episodes=progress.episodes)
    monitors: list[Monitor] = [console, TensorBoardEvents(), *map(ExperimentTracker, scenario.track)]
    if progress.on_step:
        monitors.append(Callback(progress.on_step))
    # Only the console prints the closing report: event files and trackers are closed by then.
    report = MonitorGroup([console])
    with stop or StopRequest() as request:
        try:
            finished = train_in_folder(scenario, home.path, start, monitors, request, placement)
        except KeyboardInterrupt:
            finished = False
        except CollapseError:
            report.say(closing_report(home, False, scenario.evaluate))
            raise
        with request.grace_period(LEAVE_S):
            report.say(closing_report(home, finished, scenario.evaluate))
    return finished
