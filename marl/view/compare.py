"""Comparison of runs: the settings in which they differ, and their final figures with intervals (`marl compare`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from marl.config import nearest
from marl.metrics.summaries import held_out_measures, of_games
from marl.scenario.load import ScenarioError
from marl.statistics import student
from marl.text import for_terminal
from marl.view.run_groups import RunGroup, differing, run_groups
from marl.view.text_table import rendered

_FIGURES = ("eval/nashconv", "eval/average/nashconv", "eval/optimal", "eval/random/win", "eval/minimax/draw")
_TOTALS = ("step/tokens",)
_LONGEST = 40
"""Most characters of a setting's value."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinalFigure:
    """A metric at the end of a group's runs."""

    value: float
    low: float | None
    high: float | None
    """Bounds of its 95 % interval: over seeds where there are several, else as the run measured it, if it did."""
    seeds: int

    def __str__(self) -> str:
        bounds = "" if self.low is None or self.high is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.4g}{bounds}"


def compare(runs: Sequence[Path], metrics: Sequence[str] = ()) -> str:
    """Return a table of the settings in which runs differ, and one of their final figures.

    Runs that differ in nothing but their seeds are one column: means over seeds, with Student's t intervals. The final
    figure of a run is its mean over the last tenth of the steps.

    Raises:
        ScenarioError: if a folder holds no run, or none has one of the metrics.
    """
    groups = run_groups(runs)
    names = list(dict.fromkeys(name for group in groups for rows in group.rows for row in rows for name in row))
    for name in metrics:
        if name not in names:
            raise ScenarioError(f"--metric {name}: not in these runs; {nearest(name, names)}")
    parts = [_legend(groups), _settings(groups), _figures(groups, metrics or default_figures(names))]
    return "\n\n".join(filter(None, parts))


def default_figures(names: Sequence[str]) -> list[str]:
    """Return the metrics by which runs are judged: success on held-out starts, exact figures, wins, returns."""
    chosen = [*held_out_measures(names), *of_games(_FIGURES, names)]
    chosen += [name for name in names if name.startswith("episode/return/")]
    return list(dict.fromkeys([*chosen, *(name for name in _TOTALS if name in names)]))


def final_figure(group: RunGroup, name: str) -> FinalFigure | None:
    """Return a metric at the end of a group's runs; None if no run has it."""
    ends = [end for rows in group.rows if (end := _end(rows, name)) is not None]
    if not ends:
        return None
    if len(ends) > 1:
        low, mean, high = student(ends)
        return FinalFigure(mean, low, high, len(ends))
    bounds = [_end(group.rows[0], f"{name}_{side}") for side in ("low", "high")]
    return FinalFigure(ends[0], *bounds, seeds=1)


def _end(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean of the last tenth of the steps, or the last value where that has none."""
    values = [(row["step"], row[name]) for row in rows if name in row and isfinite(row[name])]
    if not values:
        return None
    late = [value for step, value in values if step >= 0.9 * rows[-1]["step"]]
    return fmean(late or [values[-1][1]])


def _legend(groups: Sequence[RunGroup]) -> str:
    lines = [f"{_letter(i)}: {group.name} (step {_steps(group)})" for i, group in enumerate(groups)]
    return "\n".join(lines)


def _steps(group: RunGroup) -> str:
    return ", ".join(dict.fromkeys(str(rows[-1]["step"]) if rows else "0" for rows in group.rows))


def _letter(index: int) -> str:
    """Return a column's name: A, B, …, Z, AA, …."""
    head, place = divmod(index, 26)
    return (_letter(head - 1) if head else "") + chr(ord("A") + place)


def _settings(groups: Sequence[RunGroup]) -> str:
    paths = differing(groups)
    if not paths:
        return "The settings are the same, but for seeds." if len(groups) == 1 else ""
    return _table("setting", groups, ((path, [_shown(group, path) for group in groups]) for path in paths))


def _shown(group: RunGroup, path: str) -> str:
    text = group.setting(path)
    if text is None:
        return "-"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _figures(groups: Sequence[RunGroup], names: Sequence[str]) -> str:
    if not names:
        return "Nothing was measured yet."
    return _table("figure, mean of the last tenth [95 %]", groups, _figure_rows(groups, names))


def _figure_rows(groups: Sequence[RunGroup], names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for name in names:
        figures = [final_figure(group, name) for group in groups]
        yield name, ["-" if figure is None else str(figure) for figure in figures]


def _table(heading: str, groups: Sequence[RunGroup], rows: Iterator[tuple[str, list[str]]]) -> str:
    table = Table(heading, box=box.SIMPLE)
    for index in range(len(groups)):
        table.add_column(_letter(index), overflow="fold")
    for name, cells in rows:
        table.add_row(*(Text(for_terminal(cell)) for cell in (name, *cells)))
    return rendered(table, max(110, 44 + 26 * len(groups))).strip("\n")
