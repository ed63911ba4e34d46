"""Terminal dashboard of a run: progress, speed, roles, policies, alarms and the latest sampled episode.

`marl top` and `marl train` draw the dashboard. Lines are truncated to the width, and control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl.core.graph import Trajectory
from marl.host.outside import escape_for_terminal
from marl.metrics.alarms import is_alarm_metric
from marl.metrics.trajectory_metrics import held_out_metrics, matching_metrics
from marl.runs.liveness import Liveness, format_duration
from marl.view.brief_dialogue import brief_dialogue
from marl.view.curves import sparkline
from marl.view.metric_tables import Rows, latest_values, policy_table, role_table
from marl.view.throughput import Throughput, measure_throughput

MIN_WIDTH = 40
"""Minimum layout width [characters]."""
_COLOURS = {"training": "green", "complete": "green", "silent": "yellow", "stopped": "yellow"}
_EXACT = ("eval/nashconv", "eval/average/nashconv", "eval/legal_mass", "eval/optimal")
_FIGURES = (*_EXACT, "eval/random/win", "eval/minimax/draw")
_MOST_FIGURES = 12
"""Maximum number of metrics besides those of roles and policies."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """Snapshot of a run for display."""

    title: str
    rows: Rows
    """Newest rows of metrics, oldest first."""
    planned_steps: int | None
    """Planned number of steps, or None if unknown."""
    state: Liveness | None = None
    episode: tuple[int, Trajectory] | None = None
    """Step and trajectory of the latest sampled episode."""
    note: str = ""
    """Name of an unreadable file, and the reason."""

    @property
    def step(self) -> int:
        """Number of completed steps."""
        return int(self.rows[-1]["step"]) if self.rows else 0


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Size of the terminal area for a frame."""

    width: int
    """Width [characters]."""
    height: int | None = None
    """Height [lines], or None if unlimited."""


def render_dashboard(view: RunSnapshot, room: TerminalSize) -> RenderableType:
    """Return the frame of a run within the height of `room`."""
    width = max(room.width, MIN_WIDTH)
    lines = list(_head(view, width))
    for part in (
        *(role_table(view.rows, width), policy_table(view.rows, width), _alarms(view.rows), _figures(view.rows, width)),
        *([Text(escape_for_terminal(view.note), "yellow")] if view.note else []),
    ):
        lines += [Text(), part] if part is not None else []
    # The episode fills the rest of the screen, and is dropped if fewer than four lines remain.
    used = sum(map(_height, lines))
    if view.episode is not None and (room.height is None or room.height - used > 3):
        remaining_lines = 12 if room.height is None else room.height - used - 1
        lines += [Text(), *brief_dialogue(*view.episode, width, remaining_lines)]
    return Group(*lines)


def _height(part: RenderableType) -> int:
    return part.row_count + 1 if isinstance(part, Table) else 1


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _head(view: RunSnapshot, width: int) -> Iterator[RenderableType]:
    title: list[str | tuple[str, str]] = [(escape_for_terminal(view.title), "bold")]
    if view.state:
        title += ["  ", (view.state.state, _COLOURS.get(view.state.state, "red"))]
    yield _line(*title)
    if view.state and view.state.words:
        yield _line((escape_for_terminal(view.state.words), "dim"))
    speed = measure_throughput(view.rows)
    yield _progress(view, speed, width)
    if speed:
        yield from _speed(speed)


def _progress(view: RunSnapshot, speed: Throughput | None, width: int) -> RenderableType:
    ends = view.state is not None and view.state.state not in ("training", "silent")
    planned = view.planned_steps
    words = f"step {view.step}" + (f"/{planned}" if planned else "")
    if planned:
        words += f"  {view.step / planned:.0%}"
        if speed and view.step < planned and not ends:
            words += f"  ETA {format_duration(speed.remaining_s(planned - view.step))}"
    if not planned or width < 50:
        return _line(words)
    row = Table.grid(padding=(0, 2))
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True)
    row.add_row(ProgressBar(planned, min(view.step, planned), width=min(40, width - len(words) - 2)), words)
    return row


def _speed(speed: Throughput) -> Iterator[Text]:
    rates = [f"{_rounded(speed.tokens_per_s)} tokens/s", f"{_rounded(speed.episodes_per_s)} episodes/s"]
    yield _line("  ".join([*rates, f"{speed.step_s:.3g} s a step"]))
    shares = [f"{stage} {share:.0%}" for stage, share in speed.time_shares.items() if share >= 0.005]
    yield _line(("  ".join(["time:", *shares]), "dim"))


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _alarms(rows: Rows) -> Text | None:
    """Return the alarms active in the newest row with their first steps, or None."""
    if not rows:
        return None
    holding = [name for name, value in rows[-1].items() if is_alarm_metric(name) and value]
    words = [f"ALARM {escape_for_terminal(name)} since step {_since(rows, name)}" for name in holding]
    return Text("\n".join(words), "red", no_wrap=True, overflow="ellipsis") if words else None


def _since(rows: Rows, name: str) -> str:
    """Return the first step of the alarm's current uninterrupted period."""
    first = len(rows) - 1
    while first > 0 and rows[first - 1].get(name):
        first -= 1
    return f"{rows[first]['step']}{' or earlier' if not first and rows[0]['step'] > 1 else ''}"


def _figures(rows: Rows, width: int) -> Table | None:
    """Return a table of measures and evaluation results with their history, or None without any."""
    latest = latest_values(rows)
    episode_metrics = sorted(name for name in latest if name.startswith(("episode/measure/", "episode/return/")))
    names = list(dict.fromkeys([*matching_metrics(_FIGURES, latest), *held_out_metrics(latest), *episode_metrics]))
    if not names:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("figure", "now", "step", *(["history"] if width >= 60 else [])):
        table.add_column(heading, no_wrap=True, overflow="ellipsis", justify="left")
    for name in names[:_MOST_FIGURES]:
        step, value = latest[name]
        history = [sparkline(metric_values(rows, name), min(40, width - 50))] if width >= 60 else []
        table.add_row(Text(escape_for_terminal(name)), f"{value:.4g}", str(step), *history)
    if len(names) > _MOST_FIGURES:
        table.add_row(f"+{len(names) - _MOST_FIGURES} more")
    return table


def metric_values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the measured values of metric `name`."""
    return [row[name] for row in rows if name in row]
