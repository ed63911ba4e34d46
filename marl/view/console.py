"""Progress of a run on the console: a live table on a terminal, plain lines elsewhere."""

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

from marl.config import cut
from marl.errors import FolderError
from marl.graph import Trajectory
from marl.metrics.alarms import is_alarm
from marl.metrics.summaries import held_out_measures, of_games
from marl.runs.liveness import Liveness, duration
from marl.runs.row_tail import RowTail
from marl.runs.run_folder import RunFolder
from marl.text import for_terminal
from marl.types import Metrics
from marl.view.run_frame import RunView, Screenful, run_frame

_EXACT = ("eval/nashconv", "eval/average/nashconv", "eval/legal_mass", "eval/optimal")
_SHOWN = (*_EXACT, "eval/random/win", "eval/minimax/draw")
_QUIET_S = 5.0
_EPISODE_S = 10.0
"""Least time for which a sampled episode is shown, in seconds."""
_LIVE_ROWS = 200
"""Newest rows that a live table looks at."""
_WARM_UP_S = 10.0
"""Seconds between two lines of a warm-up."""
LONGEST_LINE = 200
"""Most characters of a step's line."""


def show(console: Console, text: str) -> None:
    """Print a text as it is: markup and control characters in it are shown, not obeyed."""
    console.print(for_terminal(text), markup=False, highlight=False, emoji=False, soft_wrap=True)


def notable(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the few metrics of a step that a person looks at first."""
    names = of_games(_SHOWN, metrics)
    names += held_out_measures(metrics)
    names += sorted(n for n in metrics if n.startswith("episode/measure/") or is_alarm(n))
    names += sorted(n for n in metrics if n.startswith("episode/return/"))
    names += sorted(n for n in metrics if n.startswith("role/") and n.endswith("/illegal") and "/reward/" not in n)
    names += sorted(n for n in metrics if n.startswith("policy/") and n.endswith(("/loss", "/entropy", "/kl_sampler")))
    return {name: metrics[name] for name in names}


class Monitor:
    """Follows a run: the console, event files, a tracker. What it does not override is ignored."""

    dispensable: ClassVar[tuple[type[Exception], ...]] = (OSError, ValueError, FolderError)
    """Errors after which the run goes on without this monitor: those of output, such as a closed pipe or a full disk,
    or an encoding that lacks a character."""

    name: str = "a monitor"
    """Words by which the others name it when it is lost."""

    def begin(self, folder: RunFolder) -> None:
        """Take note of the folder; called once, when it is as the run goes on from it."""

    def log(self, step: int, metrics: Metrics) -> None:
        """Take the metrics of a step."""

    def played(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Take the episodes of a step, whose metrics were logged before."""

    def say(self, message: str) -> None:
        """Show a message to whoever watches the run."""

    def close(self) -> None:
        """Release what is open."""


class Screen(Console):
    """Standard output. A pipe that nobody reads any longer is an error like others, not the end of the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "standard output is closed")


class PlainLines(Monitor):
    """A line at most every few seconds, and one for every evaluation."""

    name = "standard output"

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps, self._shown = console, steps, -_QUIET_S

    def begin(self, folder: RunFolder) -> None:
        self.say(f"{folder.path}: metrics.jsonl, events/ (tensorboard --logdir {folder.path}), checkpoints/")

    def log(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        evaluated = any(name.startswith("eval/") for name in metrics)
        if not evaluated and step < self._steps and now - self._shown < _QUIET_S:
            return
        self._shown = now
        self.say(step_line(f"step {step}/{self._steps}", notable(metrics)))

    def say(self, message: str) -> None:
        show(self._console, message)


def step_line(head: str, figures: Mapping[str, float]) -> str:
    """Return `head` and as many of the figures as `LONGEST_LINE` has room for, with the number of those left out."""
    line = head
    for index, (name, value) in enumerate(figures.items()):
        more = f"{line}  {name} {value:.4g}"
        left = len(figures) - index - 1
        if len(more) + (len(f"  +{left} more") if left else 0) > LONGEST_LINE:
            return f"{line}  +{left + 1} more"
        line = more
    return line


class LiveTable(Monitor):
    """A progress bar with the time that is left, tables of roles and policies, and an episode now and then."""

    name = "standard output"

    def __init__(self, console: Console, steps: int, title: str, *, episodes: bool = True) -> None:
        """`episodes`: show a sampled episode now and then."""
        self._console, self._steps, self._title, self._episodes = console, steps, title, episodes
        self._rows: deque[Mapping[str, Any]] = deque(maxlen=_LIVE_ROWS)
        self._episode: tuple[int, Trajectory] | None = None
        self._closed = False
        self._began = self._stepped = self._chosen = time.monotonic()
        # Drawn when the screen is refreshed, not at every step: steps may be many a second.
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=2)

    def begin(self, folder: RunFolder) -> None:
        tail = RowTail(folder.path, _LIVE_ROWS)
        tail.update()
        self._rows.extend(tail.rows)
        self._began = self._stepped = time.monotonic()
        self._live.start()

    def log(self, step: int, metrics: Metrics) -> None:
        self._rows.append({"step": step, **metrics})
        self._stepped = time.monotonic()

    def played(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        now = time.monotonic()
        if self._episodes and trajectories and (self._episode is None or now - self._chosen >= _EPISODE_S):
            self._episode, self._chosen = (step, trajectories[0]), now

    def _render(self) -> RenderableType:
        now = time.monotonic()
        words = f"for {duration(now - self._began)}, this step for {duration(now - self._stepped)}"
        state = None if self._closed else Liveness("training", words)
        view = RunView(self._title, list(self._rows), self._steps, state, self._episode)
        width, height = self._console.size
        return run_frame(view, Screenful(width, height - 1))

    def say(self, message: str) -> None:
        show(self._console, message)

    def close(self) -> None:
        self._closed = True
        self._live.stop()


class Monitors(Monitor):
    """All that follow a run. One that fails is left out from then on, and the others say so once."""

    def __init__(self, monitors: Sequence[Monitor]) -> None:
        self._monitors = list(monitors)

    def begin(self, folder: RunFolder) -> None:
        self._tell(lambda monitor: monitor.begin(folder))

    def log(self, step: int, metrics: Metrics) -> None:
        self._tell(lambda monitor: monitor.log(step, metrics))

    def played(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        self._tell(lambda monitor: monitor.played(step, trajectories))

    def say(self, message: str) -> None:
        self._tell(lambda monitor: monitor.say(message))

    def close(self) -> None:
        self._tell(lambda monitor: monitor.close())

    def _tell(self, act: Callable[[Monitor], None]) -> None:
        lost: list[str] = []
        for monitor in list(self._monitors):
            try:
                act(monitor)
            except monitor.dispensable as error:
                self._monitors.remove(monitor)
                lost.append(f"WARNING: {monitor.name} failed, and the run goes on without: {cut(str(error))}")
                if isinstance(monitor, PlainLines | LiveTable):
                    with suppress(OSError, ValueError):
                        show(Console(stderr=True), lost[-1])
        for message in lost:
            self.say(message)


class WarmUpProgress(Monitor):
    """Progress of the warm-up of a new tiny model, on standard error: a bar on a terminal, elsewhere now and then a
    line."""

    def __init__(self, policy: str, steps: int) -> None:
        self._console = Console(stderr=True)
        self._steps, self._last_line = steps, time.monotonic()
        self._progress = _bar(self._console)
        self._progress.disable = not self._console.is_terminal
        self._task = self._progress.add_task("warm-up", total=steps)
        show(
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
            show(self._console, "  ".join([f"warm-up {step}/{self._steps}", *losses]))

    def close(self) -> None:
        self._progress.stop()


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)


def console_monitor(console: Console, steps: int, title: str, *, episodes: bool = True) -> PlainLines | LiveTable:
    """Return a live table on a terminal, with `episodes` or without; plain lines in a pipe or a log file."""
    if console.is_terminal:
        return LiveTable(console, steps, title, episodes=episodes)
    return PlainLines(console, steps)
