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
from marl.core.errors import FolderError
from marl.core.graph import Trajectory
from marl.core.types import Metrics
from marl.host.outside import escape_for_terminal
from marl.metrics.alarms import is_alarm_metric
from marl.metrics.trajectory_metrics import held_out_metrics, matching_metrics
from marl.runs.liveness import Liveness, format_duration
from marl.runs.metrics_tail import MetricsTail
from marl.runs.run_folder import RunFolder
from marl.view.run_dashboard import RunSnapshot, TerminalSize, render_dashboard

_EXACT = ("eval/nashconv", "eval/average/nashconv", "eval/legal_mass", "eval/optimal")
_SHOWN = (*_EXACT, "eval/random/win", "eval/minimax/draw")
_QUIET_S = 5.0
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


def headline_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the main metrics of a step: evaluations, measures, alarms, returns, illegal moves and losses."""
    names = matching_metrics(_SHOWN, metrics)
    names += held_out_metrics(metrics)
    names += sorted(n for n in metrics if n.startswith("episode/measure/") or is_alarm_metric(n))
    names += sorted(n for n in metrics if n.startswith("episode/return/"))
    names += sorted(n for n in metrics if n.startswith("role/") and n.endswith("/illegal") and "/reward/" not in n)
    names += sorted(n for n in metrics if n.startswith("policy/") and n.endswith(("/loss", "/entropy", "/kl_sampler")))
    return {name: metrics[name] for name in names}


class Monitor:
    """Observer of a run, such as the console, event files or a tracker. Methods that are not overridden do nothing."""

    tolerated_errors: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError, FolderError)
    """Output errors after which the run continues without this monitor, such as a closed pipe, a full disk or a
    missing character in the encoding."""

    name: str = "a monitor"
    """Name of the monitor in the warning about its failure."""

    def begin(self, folder: RunFolder) -> None:
        """Prepare for the run in `folder`. Called once, after the folder is restored for a resumed run."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Receive the metrics of a step."""

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Receive the episodes of a step, after its metrics."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def close(self) -> None:
        """Release open resources."""


class StdoutConsole(Console):
    """Console on standard output that reports a closed pipe as an error. Rich would exit the process instead."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "standard output is closed")


class LineMonitor(Monitor):
    """Monitor that prints a line every few seconds, and one for every evaluation."""

    name = "standard output"

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps, self._shown = console, steps, -_QUIET_S

    def begin(self, folder: RunFolder) -> None:
        self.say(f"{folder.path}: metrics.jsonl, events/ (tensorboard --logdir {folder.path}), checkpoints/")

    def log(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        evaluated = any(name.startswith("eval/") for name in metrics)
        # Evaluations and the last step are always printed.
        if not evaluated and step < self._steps and now - self._shown < _QUIET_S:
            return
        self._shown = now
        self.say(step_line(f"step {step}/{self._steps}", headline_metrics(metrics)))

    def say(self, message: str) -> None:
        print_literally(self._console, message)


def step_line(head: str, figures: Mapping[str, float]) -> str:
    """Return `head` and the metrics that fit `MAX_LINE_LENGTH`, with the number of omitted ones."""
    line = head
    for index, (name, value) in enumerate(figures.items()):
        more = f"{line}  {name} {value:.4g}"
        omitted = len(figures) - index - 1
        if len(more) + (len(f"  +{omitted} more") if omitted else 0) > MAX_LINE_LENGTH:
            return f"{line}  +{omitted + 1} more"
        line = more
    return line


class LiveDashboard(Monitor):
    """Monitor with a progress bar, the remaining time, tables of roles and policies, and a sampled episode."""

    name = "standard output"

    def __init__(self, console: Console, steps: int, title: str, *, episodes: bool = True) -> None:
        """`episodes`: True shows a sampled episode from time to time."""
        self._console, self._steps, self._title, self._episodes = console, steps, title, episodes
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=_LIVE_ROWS)
        self._episode: tuple[int, Trajectory] | None = None
        self._closed = False
        self._began = self._stepped = self._chosen = time.monotonic()
        # The screen refresh calls `_render`: drawing at every step would slow down runs with many steps per second.
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=2)

    def begin(self, folder: RunFolder) -> None:
        tail = MetricsTail(folder.path, _LIVE_ROWS)
        tail.update()
        self._rows.extend(tail.rows)
        self._began = self._stepped = time.monotonic()
        self._live.start()

    def log(self, step: int, metrics: Metrics) -> None:
        self._rows.append({"step": step, **metrics})
        self._stepped = time.monotonic()

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        now = time.monotonic()
        if self._episodes and trajectories and (self._episode is None or now - self._chosen >= _EPISODE_S):
            self._episode, self._chosen = (step, trajectories[0]), now

    def _render(self) -> RenderableType:
        now = time.monotonic()
        words = f"for {format_duration(now - self._began)}, this step for {format_duration(now - self._stepped)}"
        state = None if self._closed else Liveness("training", words)
        view = RunSnapshot(self._title, list(self._rows), self._steps, state, self._episode)
        width, height = self._console.size
        return render_dashboard(view, TerminalSize(width, height - 1))

    def say(self, message: str) -> None:
        print_literally(self._console, message)

    def close(self) -> None:
        self._closed = True
        self._live.stop()


class MonitorGroup(Monitor):
    """Monitor that forwards to several monitors. A failed one is removed, and the others show a warning once."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = list(monitors)

    def begin(self, folder: RunFolder) -> None:
        self._tell(lambda monitor: monitor.begin(folder))

    def log(self, step: int, metrics: Metrics) -> None:
        self._tell(lambda monitor: monitor.log(step, metrics))

    def log_episodes(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._tell(lambda monitor: monitor.log_episodes(step, trajectories))

    def say(self, message: str) -> None:
        self._tell(lambda monitor: monitor.say(message))

    def close(self) -> None:
        self._tell(lambda monitor: monitor.close())

    def _tell(self, act: Callable[[Monitor], None]) -> None:
        lost: list[str] = []
        for monitor in list(self._monitors):
            try:
                act(monitor)
            except monitor.tolerated_errors as error:
                self._monitors.remove(monitor)
                lost.append(f"WARNING: {monitor.name} failed, and the run goes on without: {shorten(str(error))}")
                # Without a console, the remaining monitors may have no place for the message.
                if isinstance(monitor, LineMonitor | LiveDashboard):
                    with suppress(OSError, ValueError):
                        print_literally(Console(stderr=True), lost[-1])
        # After the loop, so that only the remaining monitors show the warning.
        for message in lost:
            self.say(message)


class WarmUpProgress(Monitor):
    """Progress of a tiny model's warm-up on standard error: a bar on a terminal, occasional lines elsewhere."""

    def __init__(self, policy: str, steps: int) -> None:
        self._console = Console(stderr=True)
        self._steps, self._last_line = steps, time.monotonic()
        self._progress = _bar(self._console)
        self._progress.disable = not self._console.is_terminal
        self._task = self._progress.add_task("warm-up", total=steps)
        print_literally(
            self._console,
            f"policy {policy}: teaching a new tiny model the format of its answers, {steps} steps (once; then cached)",
        )

    def begin(self, folder: RunFolder) -> None:
        self._progress.start()

    def log(self, step: int, metrics: Metrics) -> None:
        losses = [f"loss {value:.3g}" for name, value in metrics.items() if name.endswith("/loss")]
        self._progress.update(self._task, completed=step, description="  ".join(["warm-up", *losses]))
        if self._progress.disable and time.monotonic() - self._last_line >= _WARM_UP_S:
            self._last_line = time.monotonic()
            print_literally(self._console, "  ".join([f"warm-up {step}/{self._steps}", *losses]))

    def close(self) -> None:
        self._progress.stop()


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)


def console_monitor(console: Console, steps: int, title: str, *, episodes: bool = True) -> LineMonitor | LiveDashboard:
    """Return a live dashboard for a terminal, or a line monitor for a pipe or log file."""
    if console.is_terminal:
        return LiveDashboard(console, steps, title, episodes=episodes)
    return LineMonitor(console, steps)
