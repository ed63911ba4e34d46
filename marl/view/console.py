"""Console output of a run: a live dashboard on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from marl.core.config import shorten
from marl.core.errors import RunFolderError
from marl.core.graph import Trajectory
from marl.core.types import Metrics
from marl.host.untrusted_text import escape_for_terminal
from marl.metrics.alarms import is_alarm_metric
from marl.metrics.trajectory_metrics import held_out_metric_names, metric_names_in_all_games
from marl.runs.liveness import RunLiveness, format_duration
from marl.runs.metrics_tail import MetricsTail
from marl.runs.run_folder import RunFolder
from marl.view.run_dashboard import RunSnapshot, TerminalSize, render_dashboard

_EXACT = ("eval/nashconv", "eval/average/nashconv", "eval/legal_mass", "eval/optimal")
_SHOWN = (*_EXACT, "eval/random/win", "eval/minimax/draw")
_QUIET_S = 5.0
"""Minimum interval between two lines of `LineMonitor` without an evaluation [s]."""
_EPISODE_S = 10.0
"""Minimum time for which a sampled episode stays on screen [s]."""
_LIVE_ROWS = 200
"""Number of newest metric rows in a live dashboard."""
_WARM_UP_S = 10.0
"""Interval between two progress lines of a warm-up [s]."""
MAX_LINE_LENGTH = 200
"""Length limit of a step's line [characters]."""


def print_literally(console: Console, text: str) -> None:
    """Print `text` literally: rich markup is not interpreted, and control characters are escaped."""
    console.print(escape_for_terminal(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


def select_headline_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the main metrics of a step: evaluations, measures, alarms, returns, illegal moves and losses."""
    measures, returns, illegal, losses = [], [], [], []
    for name in sorted(metrics):
        if name.startswith("episode/measure/") or is_alarm_metric(name):
            measures.append(name)
        elif name.startswith("episode/return/"):
            returns.append(name)
        elif name.startswith("role/") and name.endswith("/illegal") and "/reward/" not in name:
            illegal.append(name)
        elif name.startswith("policy/") and name.endswith(("/loss", "/entropy", "/kl_sampler")):
            losses.append(name)
    names = [
        *metric_names_in_all_games(_SHOWN, metrics),
        *held_out_metric_names(metrics),
        *measures,
        *returns,
        *illegal,
        *losses,
    ]
    return {name: metrics[name] for name in names}


class RunMonitor:
    """Observer of a run, such as the console, event files or a tracker. Methods that are not overridden do nothing."""

    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError, RunFolderError)
    """Output errors after which the run continues without this monitor, such as a closed pipe, a full disk or a
    missing character in the encoding."""

    name: str = "a monitor"
    """Name of the monitor in the warning about its failure."""

    def begin(self, folder: RunFolder) -> None:
        """Prepare for the run in `folder`. Called once, after the folder is restored for a resumed run."""

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        """Show or store the metrics of a training step."""

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Show or store the episodes of a training step, after the call of `log_metrics` for this step."""

    def show_message(self, message: str) -> None:
        """Show a message to the user."""

    def close(self) -> None:
        """Release open resources."""


class ConsoleRaisingBrokenPipe(Console):
    """Console on standard output that reports a closed pipe as an error. Rich would exit the process instead."""

    def on_broken_pipe(self) -> None:
        """Raise the error of a closed pipe, in place of Rich's exit."""
        raise BrokenPipeError(errno.EPIPE, "standard output is closed")


class LineMonitor(RunMonitor):
    """Monitor that prints a line every few seconds, and one for every evaluation."""

    name = "standard output"

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps, self._shown = console, steps, -_QUIET_S

    def begin(self, folder: RunFolder) -> None:
        self.show_message(f"{folder.path}: metrics.jsonl, events/ (tensorboard --logdir {folder.path}), checkpoints/")

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        evaluated = any(name.startswith("eval/") for name in metrics)
        # Lines are limited to one per `_QUIET_S` seconds, except for evaluations and the last step.
        if not evaluated and step < self._steps and now - self._shown < _QUIET_S:
            return
        self._shown = now
        self.show_message(metrics_line(f"step {step}/{self._steps}", select_headline_metrics(metrics)))

    def show_message(self, message: str) -> None:
        print_literally(self._console, message)


def metrics_line(line_start: str, metrics: Mapping[str, float]) -> str:
    """Return `line_start` and as many metrics as fit `MAX_LINE_LENGTH`, with the number of omitted metrics."""
    line = line_start
    for index, (name, value) in enumerate(metrics.items()):
        more = f"{line}  {name} {value:.4g}"
        omitted = len(metrics) - index - 1
        if len(more) + (len(f"  +{omitted} more") if omitted else 0) > MAX_LINE_LENGTH:
            return f"{line}  +{omitted + 1} more"
        line = more
    return line


class LiveDashboard(RunMonitor):
    """Monitor with a progress bar, the remaining time, tables of roles and policies, and a sampled episode."""

    name = "standard output"

    def __init__(self, console: Console, steps: int, title: str, *, episodes: bool = True) -> None:
        """With `episodes` the dashboard shows a sampled episode from time to time."""
        self._console, self._steps, self._title, self._episodes = console, steps, title, episodes
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=_LIVE_ROWS)
        self._episode: tuple[int, Trajectory] | None = None
        self._closed = False
        self._start_s = self._step_s = self._episode_s = time.monotonic()
        """Times at which the run, its current step and the shown episode began (`time.monotonic()`)."""
        # `_render` runs twice a second: drawing every step would slow down runs with many steps per second.
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=2)

    def begin(self, folder: RunFolder) -> None:
        tail = MetricsTail(folder.path, _LIVE_ROWS)
        tail.read_new_rows()
        self._rows.extend(tail.rows)
        self._start_s = self._step_s = time.monotonic()
        self._live.start()

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        self._rows.append({"step": step, **metrics})
        self._step_s = time.monotonic()

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        now = time.monotonic()
        if self._episodes and trajectories and (self._episode is None or now - self._episode_s >= _EPISODE_S):
            self._episode, self._episode_s = (step, trajectories[0]), now

    def _render(self) -> RenderableType:
        """Return the current frame of the dashboard."""
        now = time.monotonic()
        words = f"for {format_duration(now - self._start_s)}, this step for {format_duration(now - self._step_s)}"
        state = None if self._closed else RunLiveness("training", words)
        view = RunSnapshot(self._title, list(self._rows), self._steps, state, self._episode)
        width, height = self._console.size
        return render_dashboard(view, TerminalSize(width, height - 1))

    def show_message(self, message: str) -> None:
        print_literally(self._console, message)

    def close(self) -> None:
        self._closed = True
        self._live.stop()


class MonitorGroup(RunMonitor):
    """Monitor that forwards every call to several monitors.

    A monitor whose output fails is removed, and the remaining monitors show one warning.
    """

    def __init__(self, monitors: Sequence[RunMonitor]) -> None:
        self._monitors = list(monitors)

    def begin(self, folder: RunFolder) -> None:
        self._call_each_monitor(lambda monitor: monitor.begin(folder))

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        self._call_each_monitor(lambda monitor: monitor.log_metrics(step, metrics))

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._call_each_monitor(lambda monitor: monitor.log_episodes(step, trajectories))

    def show_message(self, message: str) -> None:
        self._call_each_monitor(lambda monitor: monitor.show_message(message))

    def close(self) -> None:
        self._call_each_monitor(lambda monitor: monitor.close())

    def _call_each_monitor(self, call: Callable[[RunMonitor], None]) -> None:
        """Call `call` with each monitor, and remove the monitors whose output fails."""
        warnings: list[str] = []
        for monitor in list(self._monitors):
            try:
                call(monitor)
            except monitor.tolerated_errors as error:
                self._monitors.remove(monitor)
                warnings.append(f"WARNING: {monitor.name} failed, and the run goes on without: {shorten(str(error))}")
                # If the console is the monitor that failed, a plain print to stderr shows the warning.
                if isinstance(monitor, LineMonitor | LiveDashboard):
                    with suppress(OSError, ValueError):
                        print_literally(Console(stderr=True), warnings[-1])
        # Warnings are shown after the loop, when the failed monitors have been removed.
        for warning in warnings:
            self.show_message(warning)


class WarmUpProgress(RunMonitor):
    """Progress of a tiny model's warm-up on standard error: a bar on a terminal, occasional lines elsewhere."""

    def __init__(self, policy: str, steps: int) -> None:
        self._console = Console(stderr=True)
        self._steps, self._last_line = steps, time.monotonic()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
        self._progress.disable = not self._console.is_terminal
        self._task = self._progress.add_task("warm-up", total=steps)
        print_literally(
            self._console,
            f"policy {policy}: teaching a new tiny model the format of its answers, {steps} steps (once; then cached)",
        )

    def begin(self, folder: RunFolder) -> None:
        self._progress.start()

    def log_metrics(self, step: int, metrics: Metrics) -> None:
        losses = [f"loss {value:.3g}" for name, value in metrics.items() if name.endswith("/loss")]
        self._progress.update(self._task, completed=step, description="  ".join(["warm-up", *losses]))
        if self._progress.disable and time.monotonic() - self._last_line >= _WARM_UP_S:
            self._last_line = time.monotonic()
            print_literally(self._console, "  ".join([f"warm-up {step}/{self._steps}", *losses]))

    def close(self) -> None:
        self._progress.stop()


def console_monitor(
    console: Console, steps: int, title: str, *, show_episodes: bool = True
) -> LineMonitor | LiveDashboard:
    """Return a live dashboard for a terminal, or a line monitor for a pipe or log file."""
    if console.is_terminal:
        return LiveDashboard(console, steps, title, episodes=show_episodes)
    return LineMonitor(console, steps)
