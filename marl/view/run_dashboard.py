"""Terminal dashboard of a run: progress, speed, roles, policies, alarms and the latest sampled episode.

`marl top` and `marl train` draw the dashboard. Lines are truncated to the width, and control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl.core.graph import Trajectory
from marl.host.untrusted_text import escape_for_terminal
from marl.metrics.alarms import is_alarm_metric
from marl.metrics.trajectory_metrics import held_out_metric_names, metric_names_in_all_games
from marl.runs.liveness import RunLiveness, format_duration
from marl.view.brief_dialogue import brief_dialogue_lines
from marl.view.curves import sparkline
from marl.view.metric_tables import Rows, latest_step_and_value, policy_table, role_table
from marl.view.run_groups import metric_values
from marl.view.throughput import measure_throughput

MIN_WIDTH = 40
"""Minimum layout width [characters]."""
_COLOURS = {"training": "green", "ended": "green", "silent": "yellow", "stopped": "yellow"}
_EXACT_EVALUATION_METRICS = ("eval/nashconv", "eval/average/nashconv", "eval/legal_mass", "eval/optimal")
_PREFERRED_METRICS = (*_EXACT_EVALUATION_METRICS, "eval/random/win", "eval/minimax/draw")
_MAX_TABLE_METRICS = 12
"""Maximum number of metrics besides those of roles and policies."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """Snapshot of a run for display."""

    title: str
    rows: Rows
    """Newest rows of metrics, oldest first."""
    planned_steps: int | None
    """Planned number of steps, or None if unknown."""
    state: RunLiveness | None = None
    episode: tuple[int, Trajectory] | None = None
    """Step and trajectory of the latest sampled episode."""
    note: str = ""
    """Message about a file that could not be read, or ""."""

    @property
    def completed_steps(self) -> int:
        """Number of completed training steps."""
        return int(self.rows[-1]["step"]) if self.rows else 0


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """Size of the terminal area that the dashboard may fill."""

    width: int
    """Width of the terminal area [characters]."""
    height: int | None = None
    """Height of the terminal area [lines], or None if unlimited."""


def render_dashboard(snapshot: RunSnapshot, size: TerminalSize) -> RenderableType:
    """Return the dashboard of a run, at most as high as `size`."""
    width = max(size.width, MIN_WIDTH)
    lines = list(_run_status_lines(snapshot, width))
    blocks: list[RenderableType | None] = [role_table(snapshot.rows, width), policy_table(snapshot.rows, width)]
    blocks += [_active_alarms_text(snapshot.rows), _measure_history_table(snapshot.rows, width)]
    blocks.append(Text(escape_for_terminal(snapshot.note), "yellow") if snapshot.note else None)
    for block in blocks:
        lines += [Text(), block] if block is not None else []
    # The episode gets the remaining lines of the screen, or is left out if there are fewer than four.
    used = sum(line.row_count + 1 if isinstance(line, Table) else 1 for line in lines)
    if snapshot.episode is not None and (size.height is None or size.height - used > 3):
        remaining_lines = 12 if size.height is None else size.height - used - 1
        lines += [Text(), *brief_dialogue_lines(*snapshot.episode, width, remaining_lines)]
    return Group(*lines)


def _truncated_line(*texts: str | tuple[str, str]) -> Text:
    """Return texts, or pairs (text, style), as one line that is truncated to the width."""
    return Text.assemble(*texts, no_wrap=True, overflow="ellipsis")


def _run_status_lines(snapshot: RunSnapshot, width: int) -> Iterator[RenderableType]:
    """Yield the title, state, completed steps, remaining time and speed of a run."""
    name, state = escape_for_terminal(snapshot.title), snapshot.state.state if snapshot.state else ""
    # A long path is cut at its beginning, so that a narrow terminal still shows the run's name and state.
    room = max(1, width - len(state) - 2)
    title: list[str | tuple[str, str]] = [(name if len(name) <= room else f"…{name[1 - room :]}", "bold")]
    if state:
        title += ["  ", (state, _COLOURS.get(state, "red"))]
    yield _truncated_line(*title)
    if snapshot.state and snapshot.state.description:
        yield _truncated_line((escape_for_terminal(snapshot.state.description), "dim"))
    speed = measure_throughput(snapshot.rows)
    ends = snapshot.state is not None and snapshot.state.state not in ("training", "silent")
    planned = snapshot.planned_steps
    completed = snapshot.completed_steps
    words = f"step {completed}" + (f"/{planned}" if planned else "")
    if planned:
        words += f"  {completed / planned:.0%}"
        if speed and completed < planned and not ends:
            words += f"  ETA {format_duration(speed.step_s * (planned - completed))}"
    if not planned or width < 50:
        yield _truncated_line(words)
    else:
        row = Table.grid(padding=(0, 2))
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(planned, min(completed, planned), width=min(40, width - len(words) - 2)), words)
        yield row
    if speed:
        rates = [
            f"{_format_with_three_digits(speed.tokens_per_s)} tokens/s",
            f"{_format_with_three_digits(speed.episodes_per_s)} episodes/s",
        ]
        yield _truncated_line("  ".join([*rates, f"{speed.step_s:.3g} s a step"]))
        shares = [f"{stage} {share:.0%}" for stage, share in speed.time_shares.items() if share >= 0.005]
        yield _truncated_line(("  ".join(["time:", *shares]), "dim"))


def _format_with_three_digits(number: float) -> str:
    """Return a number of at least 100 without decimals, and a smaller number with three digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _active_alarms_text(rows: Rows) -> Text | None:
    """Return a line for each alarm active in the newest row, with the first step of its current period, or None."""
    lines: list[str] = []
    for name, active in rows[-1].items() if rows else ():
        if is_alarm_metric(name) and active:
            first = len(rows) - 1
            while first > 0 and rows[first - 1].get(name):
                first -= 1
            # The rows may not go back to the alarm's first step, hence "or earlier".
            since = f"{rows[first]['step']}{' or earlier' if not first and rows[0]['step'] > 1 else ''}"
            lines.append(f"ALARM {escape_for_terminal(name)} since step {since}")
    return Text("\n".join(lines), "red", no_wrap=True, overflow="ellipsis") if lines else None


def _measure_history_table(rows: Rows, width: int) -> Table | None:
    """Return a table of measures and evaluation results with sparklines, or None if nothing was measured."""
    latest = latest_step_and_value(rows)
    episode_metrics = sorted(name for name in latest if name.startswith(("episode/measure/", "episode/return/")))
    names = list(
        dict.fromkeys(
            [*metric_names_in_all_games(_PREFERRED_METRICS, latest), *held_out_metric_names(latest), *episode_metrics]
        )
    )
    if not names:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("figure", "now", "step", *(["history"] if width >= 60 else [])):
        table.add_column(heading, no_wrap=True, overflow="ellipsis", justify="left")
    for name in names[:_MAX_TABLE_METRICS]:
        step, value = latest[name]
        history = [sparkline(metric_values(rows, name), min(40, width - 50))] if width >= 60 else []
        table.add_row(Text(escape_for_terminal(name)), f"{value:.4g}", str(step), *history)
    if len(names) > _MAX_TABLE_METRICS:
        table.add_row(f"+{len(names) - _MAX_TABLE_METRICS} more")
    return table
