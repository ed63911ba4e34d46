"""A run at a glance on a terminal: progress, speed, roles, policies, alarms and the last sampled episode.

`marl top` and `marl train` draw it. Every line is cut to the width; names and texts are shown, never obeyed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl.graph import Trajectory
from marl.metrics.alarms import is_alarm
from marl.metrics.summaries import held_out_measures, of_games
from marl.runs.liveness import Liveness, duration
from marl.text import for_terminal
from marl.view.brief_dialogue import brief_dialogue
from marl.view.curves import spark
from marl.view.figure_tables import Rows, latest, policy_table, role_table
from marl.view.throughput import Throughput, throughput

NARROWEST = 40
"""Least width, in characters, for which lines are laid out."""
_COLOURS = {"training": "green", "complete": "green", "silent": "yellow", "stopped": "yellow"}
_EXACT = ("eval/nashconv", "eval/average/nashconv", "eval/legal_mass", "eval/optimal")
_FIGURES = (*_EXACT, "eval/random/win", "eval/minimax/draw")
_MOST_FIGURES = 12
"""Most figures other than those of roles and policies."""


@dataclass(frozen=True, slots=True)
class RunView:
    """All that is shown of a run."""

    title: str
    rows: Rows
    """Its newest rows of metrics, oldest first."""
    planned: int | None
    """Number of steps; None if unknown."""
    state: Liveness | None = None
    episode: tuple[int, Trajectory] | None = None
    """The last sampled episode, and its step."""
    note: str = ""
    """A file that could not be read, and the reason."""

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        return int(self.rows[-1]["step"]) if self.rows else 0


@dataclass(frozen=True, slots=True)
class Screenful:
    """Room for a frame."""

    width: int
    """In characters."""
    height: int | None = None
    """In lines; None: as many as it takes."""


def run_frame(view: RunView, room: Screenful) -> RenderableType:
    """Return the frame of a run, of at most the room's height."""
    width = max(room.width, NARROWEST)
    lines = list(_head(view, width))
    for part in (
        *(role_table(view.rows, width), policy_table(view.rows, width), _alarms(view.rows), _figures(view.rows, width)),
        *([Text(for_terminal(view.note), "yellow")] if view.note else []),
    ):
        lines += [Text(), part] if part is not None else []
    used = sum(map(_height, lines))
    if view.episode is not None and (room.height is None or room.height - used > 3):
        left = 12 if room.height is None else room.height - used - 1
        lines += [Text(), *brief_dialogue(*view.episode, width, left)]
    return Group(*lines)


def _height(part: RenderableType) -> int:
    return part.row_count + 1 if isinstance(part, Table) else 1


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _head(view: RunView, width: int) -> Iterator[RenderableType]:
    title: list[str | tuple[str, str]] = [(for_terminal(view.title), "bold")]
    if view.state:
        title += ["  ", (view.state.state, _COLOURS.get(view.state.state, "red"))]
    yield _line(*title)
    if view.state and view.state.words:
        yield _line((for_terminal(view.state.words), "dim"))
    speed = throughput(view.rows)
    yield _progress(view, speed, width)
    if speed:
        yield from _speed(speed)


def _progress(view: RunView, speed: Throughput | None, width: int) -> RenderableType:
    ends = view.state is not None and view.state.state not in ("training", "silent")
    planned = view.planned
    words = f"step {view.step}" + (f"/{planned}" if planned else "")
    if planned:
        words += f"  {view.step / planned:.0%}"
        if speed and view.step < planned and not ends:
            words += f"  ETA {duration(speed.remaining_s(planned - view.step))}"
    if not planned or width < 50:
        return _line(words)
    row = Table.grid(padding=(0, 2))
    row.add_column(no_wrap=True)
    row.add_column(no_wrap=True)
    row.add_row(ProgressBar(planned, min(view.step, planned), width=min(40, width - len(words) - 2)), words)
    return row


def _speed(speed: Throughput) -> Iterator[Text]:
    rates = [f"{_rounded(speed.tokens_s)} tokens/s", f"{_rounded(speed.episodes_s)} episodes/s"]
    yield _line("  ".join([*rates, f"{speed.step_s:.3g} s a step"]))
    shares = [f"{stage} {share:.0%}" for stage, share in speed.shares.items() if share >= 0.005]
    yield _line(("  ".join(["time:", *shares]), "dim"))


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _alarms(rows: Rows) -> Text | None:
    """Return the alarms that hold in the newest row, and since when; None if none does."""
    if not rows:
        return None
    holding = [name for name, value in rows[-1].items() if is_alarm(name) and value]
    words = [f"ALARM {for_terminal(name)} since step {_since(rows, name)}" for name in holding]
    return Text("\n".join(words), "red", no_wrap=True, overflow="ellipsis") if words else None


def _since(rows: Rows, name: str) -> str:
    """Return the first step of those in which an alarm has held without a break."""
    first = len(rows) - 1
    while first > 0 and rows[first - 1].get(name):
        first -= 1
    return f"{rows[first]['step']}{' or earlier' if not first and rows[0]['step'] > 1 else ''}"


def _figures(rows: Rows, width: int) -> Table | None:
    """Return measures and results of evaluations with their history; None if there are none."""
    known = latest(rows)
    played = sorted(name for name in known if name.startswith(("episode/measure/", "episode/return/")))
    names = list(dict.fromkeys([*of_games(_FIGURES, known), *held_out_measures(known), *played]))
    if not names:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("figure", "now", "step", *(["history"] if width >= 60 else [])):
        table.add_column(heading, no_wrap=True, overflow="ellipsis", justify="left")
    for name in names[:_MOST_FIGURES]:
        step, value = known[name]
        history = [spark(values_of(rows, name), min(40, width - 50))] if width >= 60 else []
        table.add_row(Text(for_terminal(name)), f"{value:.4g}", str(step), *history)
    if len(names) > _MOST_FIGURES:
        table.add_row(f"+{len(names) - _MOST_FIGURES} more")
    return table


def values_of(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the values of a metric, where it was measured."""
    return [row[name] for row in rows if name in row]
