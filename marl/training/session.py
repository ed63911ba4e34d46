"""Training of one scenario in one folder: the run is begun or resumed, and its progress is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marl.core.errors import OutOfMemoryRunError, RunError, RunFolderError, is_out_of_memory
from marl.core.types import Metrics
from marl.host.garbage_collection import tune_garbage_collection
from marl.metrics.alarms import AlarmStopError
from marl.runs import checkpoint
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.fixed_steps import with_fixed_steps
from marl.runs.run_folder import RunFolder, scenario_to_yaml
from marl.runs.status import RunActivity, write_status_periodically
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.scenario.trust import store_consent
from marl.training.build import build
from marl.training.failure_advice import out_of_memory_advice
from marl.training.loop import TrainingLoop
from marl.training.placement import Placement
from marl.training.stop_request import LEAVE_S, StopRequest
from marl.view.closing_report import closing_report
from marl.view.console import ConsoleRaisingBrokenPipe, MonitorGroup, RunMonitor, console_monitor
from marl.view.trackers import ExperimentTracker, TensorBoardEvents


def train_in_folder(
    scenario: Scenario,
    folder: Path,
    start: NewOrResumedRunStart,
    monitors: Sequence[RunMonitor],
    stop: StopRequest | None = None,
    placement: Placement | None = None,
) -> bool:
    """Train `scenario` in `folder`, which is locked meanwhile; return True if training reached its last step.

    Args:
        stop: stop request that the caller has entered as a context. Before the first step it ends training at once,
            later after a checkpoint of the completed steps.
        placement: location of engines, simulators and learners (default: this process).

    Raises:
        OutOfMemoryRunError: if the models do not fit into memory.
    """
    home, stop, monitor = RunFolder(folder), stop or StopRequest(), MonitorGroup(monitors)
    start.check_resumable(home)
    with home.hold_lock():
        with stop.grace_period(0.0):
            step = start.prepare_run_folder(home, scenario)
            if step >= scenario.schedule.steps and home.metrics_if_unevaluated(step) is None:
                home.rewind_to_checkpoint(step)
                best = BestEvaluationTracker.from_rows(scenario.evaluate, home.rows())
                checkpoint.prune_checkpoints(
                    home.checkpoints, checkpoint.CheckpointRetention(scenario.checkpoint.keep, best.step)
                )
                with _open_monitors(home, monitor, [*start.notes, f"complete at step {step}: nothing to do"]):
                    return True
        loop, began = None, time.time()

        def current_activity() -> RunActivity:
            if loop is not None:
                return loop.activity()
            simulators, learners = placement.process_activities() if placement else ([], [])
            return RunActivity(step, scenario.schedule.steps, "", began, tuple(simulators), tuple(learners))

        # The status says from the first second on what the start of processes waits for.
        with write_status_periodically(home.path, current_activity):
            with stop.grace_period(0.0):
                loop = _load_run(scenario, home, monitor, step, placement)
            with _open_monitors(home, monitor, start.notes):
                return loop(stop)


def _load_run(
    scenario: Scenario, home: RunFolder, monitor: MonitorGroup, step: int, placement: Placement | None
) -> TrainingLoop:
    """Return the loop that trains `scenario` from `step` on, with all weights loaded.

    Raises:
        OutOfMemoryRunError: if the models do not fit into memory.
    """
    # Weights are loaded before files are truncated, so that an error in loading changes nothing.
    try:
        run = build(scenario, placement)
    except (RuntimeError, MemoryError, OSError) as error:
        if is_out_of_memory(error):
            raise OutOfMemoryRunError(out_of_memory_advice(scenario, "load", error)) from error
        raise
    loop = TrainingLoop(run, home, [monitor])
    loop.resume(step)
    # Objects loaded so far stay until the end, so the garbage collector need not traverse them in every step.
    tune_garbage_collection(serves_programs=scenario.runs_programs)
    return loop


@contextmanager
def _open_monitors(run_folder: RunFolder, monitor: MonitorGroup, notes: Sequence[str]) -> Iterator[None]:
    """Return a context manager that opens the monitors, prints `notes` and finally closes the monitors."""
    monitor.begin(run_folder)
    try:
        for note in notes:
            monitor.show_message(note)
        yield
    finally:
        monitor.close()


class NewOrResumedRunStart:
    """Prepares the folder of a run that begins anew, or that goes on from one of its checkpoints."""

    def __init__(self, resume: str | None = None, *, force: bool = False, overwrite: bool = False) -> None:
        """Store the options with which the run starts.

        Args:
            resume: "auto" for the newest intact checkpoint, or the folder of a checkpoint (default: a new run).
            force: True to resume although the scenario has changed.
            overwrite: True to remove the run in the folder first.
        """
        if resume is not None and overwrite:
            raise ScenarioError("--resume goes on with a run and --overwrite removes it: give one of them")
        self._resume, self._force, self._overwrite = resume, force, overwrite
        self.notes: list[str] = []
        """Sentences that are printed when training begins; `prepare_run_folder` adds them."""

    def check_resumable(self, folder: RunFolder) -> None:
        """Check `folder` before any file is written.

        Raises:
            ScenarioError: if the run is to resume from a given checkpoint, and the folder holds no run.
        """
        if self._resume not in (None, "auto") and not folder.has_run:
            raise ScenarioError(f"--resume {self._resume}: no run in {folder.path}")

    def fix_steps_of_other_runs(self, folder: RunFolder, scenario: Scenario) -> Scenario:
        """Return `scenario` with the steps of other runs' checkpoints: those of the run in `folder` if it goes on, else
        the present ones."""
        recorded = None
        if folder.has_run and not self._overwrite:
            # `prepare_run_folder` reports a scenario that cannot be read.
            with suppress(ScenarioError, RunFolderError):
                recorded = folder.scenario()
        return with_fixed_steps(scenario, recorded)

    def prepare_run_folder(self, folder: RunFolder, scenario: Scenario) -> int:
        """Create or check the run's folder, and return the number of completed steps from which training continues.

        Raises:
            ScenarioError: if the folder holds another run, or a run of another scenario; lists the changed settings.
            CheckpointError: if the chosen checkpoint is damaged.
            RunFolderError: if the folder cannot be written.
        """
        if folder.has_run and self._overwrite:
            folder.remove_files_of_run()
        if not folder.has_run:
            folder.create(scenario)
            return 0
        if self._resume is None:
            raise ScenarioError(
                f"{folder.path} holds a run: go on with it by `{folder.resume_command}`, start over with "
                "--overwrite, or choose another folder with --out"
            )
        differences = folder.setting_differences(scenario)
        more_steps = [line for line in differences if line.startswith("schedule.steps: ")]
        if scenario.schedule.steps > folder.scenario().schedule.steps and differences == more_steps:
            self.notes.append(f"{differences[0]} (schedules of learners are those of the new number)")
        elif differences and not self._force:
            lines = "\n".join(f"  {line}" for line in differences)
            raise ScenarioError(
                f"{folder.path} was started with another scenario (--force goes on all the same):\n{lines}"
            )
        if self._resume == "auto":
            step, problems = folder.latest_checkpoint()
            self.notes += [f"WARNING: {problem}; it is set aside" for problem in problems]
        else:
            path = Path(self._resume)
            elsewhere = len(path.parts) > 1 and path.parent.resolve() != folder.checkpoints.resolve()
            # `isascii` is needed, because `isdigit` accepts superscripts, which `int` refuses.
            if not (path.name.isascii() and path.name.isdigit()) or elsewhere:
                raise ScenarioError(
                    f"--resume {self._resume}: give 'auto', or a checkpoint of this run such as "
                    f"{folder.checkpoints}/000100"
                )
            step = int(path.name)
            checkpoint.verify_file_sizes(folder.checkpoints / f"{step:06d}")
        # The scenario is written last, so that an error about the checkpoint leaves the folder unchanged.
        if differences:
            folder.create(scenario)
        self.notes.append(f"going on from step {step}")
        return step


@dataclass(frozen=True, slots=True)
class StepCallbackMonitor(RunMonitor):
    """Monitor that passes every step's metrics to a function of the user; an error of the function ends the run."""

    function: Callable[[int, Metrics], None]
    """Function that is called with (number of completed steps, metrics)."""
    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = ()

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        self.function(step, metrics)


@dataclass(frozen=True, slots=True)
class ProgressOptions:
    """Options of the progress reports that are not files of the run."""

    on_step: Callable[[int, Metrics], None] | None = None
    """Function that is called with (number of completed steps, metrics) after every step (default: none)."""
    episodes: bool = True
    """True to print a sampled episode from time to time, if the output is a terminal."""


def train_with_monitors(
    scenario: Scenario,
    folder: Path,
    start: NewOrResumedRunStart,
    progress: ProgressOptions = ProgressOptions(),
    stop: StopRequest | None = None,
    placement: Placement | None = None,
) -> bool:
    """Train with console output, TensorBoard event files and trackers; return True if the last step was reached.

    Ctrl-C and termination signals end training after a checkpoint. A second Ctrl-C, or one before the first step, ends
    training at once.
    """
    home = RunFolder(folder)
    scenario = start.fix_steps_of_other_runs(home, scenario)
    store_consent(scenario_to_yaml(scenario), home.path)
    console = console_monitor(
        ConsoleRaisingBrokenPipe(), scenario.schedule.steps, home.path.name, show_episodes=progress.episodes
    )
    monitors: list[RunMonitor] = [console, TensorBoardEvents(), *map(ExperimentTracker, scenario.track)]
    if progress.on_step:
        monitors.append(StepCallbackMonitor(progress.on_step))
    # The closing report goes to the console alone, because event files and trackers are closed by then.
    report = MonitorGroup([console])
    with stop or StopRequest() as request:
        try:
            finished = train_in_folder(scenario, home.path, start, monitors, request, placement)
        except KeyboardInterrupt:
            finished = False
        except SystemExit as error:
            # Only a plug-in's code raises SystemExit. Its exit status 0 would look like a finished run.
            raise RunError(f"code called by the run asked to end the process (SystemExit: {error})") from error
        except AlarmStopError:
            report.show_message(closing_report(home, False, scenario.evaluate, scenario.credited_roles()))
            raise
        with request.grace_period(LEAVE_S):
            report.show_message(closing_report(home, finished, scenario.evaluate, scenario.credited_roles()))
    return finished
