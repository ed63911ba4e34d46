"""Figures of a run for its cards: what was measured first, and last before the step that is exported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl.evaluation.evaluate import LEGAL_MASS, counts
from marl.scenario.load import ScenarioError
from marl.view.curve_sets import CurveChoice, curve_set
from marl.view.curves import draw

CURVES = "curves.png"
MOST_FIGURES = 40
_BOUNDS = ("_low", "_high")
_SIZES = ("/episodes",)
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric, first and last."""

    name: str
    first: float
    first_step: int
    last: float
    last_step: int
    interval: tuple[float, float] | None
    """95 % interval of the last value, where the run has one."""
    note: str = ""


def figures_of(rows: Sequence[Row], step: int, roles: Sequence[str]) -> list[Figure]:
    """Return the evaluations up to a step, what seats were paid, and how these roles answered."""
    until = [row for row in rows if row["step"] <= step]
    return [_figure(name, until) for name in _names(until, roles)]


def _names(rows: Sequence[Row], roles: Sequence[str]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    evaluations = [n for n in names if n.startswith("eval/") and not n.endswith((*_BOUNDS, *_SIZES))]
    # The fewer parts a name has, the more it says of the whole.
    chosen = sorted(evaluations, key=lambda name: name.count("/"))[:MOST_FIGURES]
    chosen += [name for name in names if name.startswith("episode/return/")]
    wanted = {f"role/{role}/{figure}" for role in roles for figure in ("illegal", "cut", "tokens")}
    return chosen + [name for name in names if name in wanted]


def _figure(name: str, rows: Sequence[Row]) -> Figure:
    measured = [row for row in rows if name in row]
    first, last = measured[0], measured[-1]
    low, high = (last.get(f"{name}{bound}") for bound in _BOUNDS)
    interval = None if low is None or high is None else (low, high)
    note = "" if counts(last, name) else f"does not count: legal mass below {LEGAL_MASS}"
    return Figure(name, first[name], first["step"], last[name], last["step"], interval, note)


def draw_curves(run: Path, folder: Path) -> bool:
    """Draw the run's curves into a folder; return False if there is nothing to draw."""
    try:
        curves, _ = curve_set([run], CurveChoice())
    except ScenarioError:
        return False
    if curves:
        draw(folder / CURVES, curves)
    return bool(curves)


def table_rows(figures: Sequence[Figure]) -> Iterator[tuple[str, str, str, str]]:
    """Yield figure, first, last and interval in words."""
    for each in figures:
        last = f"{each.last:.4g} (step {each.last_step})" if each.last_step != each.first_step else "measured once"
        interval = f"{each.interval[0]:.4g} to {each.interval[1]:.4g}" if each.interval else each.note
        yield each.name, f"{each.first:.4g} (step {each.first_step})", last, interval
