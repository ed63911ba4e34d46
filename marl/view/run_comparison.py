"""Comparison of runs (`marl compare`): differing settings, and final metrics with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from marl.core.config import choices_hint
from marl.core.statistics import student
from marl.host.outside import escape_for_terminal
from marl.metrics.trajectory_metrics import held_out_metrics, matching_metrics
from marl.scenario.load import ScenarioError
from marl.view.run_groups import RunGroup, differing_settings, run_groups
from marl.view.text_table import render_table

_FIGURES = ("eval/nashconv", "eval/average/nashconv", "eval/optimal", "eval/random/win", "eval/minimax/draw")
_TOTALS = ("step/tokens",)
_LONGEST = 40
"""Length limit of a setting's value [characters]."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinalMetric:
    """Final value of a metric in a group of runs."""

    value: float
    low: float | None
    high: float | None
    """Bounds of the 95 % interval: over seeds if the group has several, else as recorded by the run, or None."""
    seeds: int

    def __str__(self) -> str:
        bounds = "" if self.low is None or self.high is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.4g}{bounds}"


def compare_runs(runs: Sequence[Path], metrics: Sequence[str] = ()) -> str:
    """Return a table of the settings in which runs differ, and a table of their final metrics.

    Runs that differ only in their seeds share a column, with means over seeds and Student's t intervals. The final
    value of a run is the mean over the last tenth of its steps.

    Raises:
        ScenarioError: if a folder contains no run, or no run has one of the metrics.
    """
    groups = run_groups(runs)
    names = list(dict.fromkeys(name for group in groups for rows in group.rows for row in rows for name in row))
    for name in metrics:
        if name not in names:
            raise ScenarioError(f"--metric {name}: not in these runs; {choices_hint(name, names)}")
    parts = [_legend(groups), _settings(groups), _figures(groups, metrics or default_metrics(names))]
    return "\n\n".join(filter(None, parts))


def default_metrics(names: Sequence[str]) -> list[str]:
    """Return the metrics that summarize a run: held-out success, exact metrics, wins, returns and token totals."""
    chosen = [*held_out_metrics(names), *matching_metrics(_FIGURES, names)]
    chosen += [name for name in names if name.startswith("episode/return/")]
    return list(dict.fromkeys([*chosen, *(name for name in _TOTALS if name in names)]))


def final_metric(group: RunGroup, name: str) -> FinalMetric | None:
    """Return the metric's final value in a group of runs, or None if no run measured it."""
    ends = [end for rows in group.rows if (end := _end(rows, name)) is not None]
    if not ends:
        return None
    if len(ends) > 1:
        low, mean, high = student(ends)
        return FinalMetric(mean, low, high, len(ends))
    bounds = [_end(group.rows[0], f"{name}_{side}") for side in ("low", "high")]
    return FinalMetric(ends[0], *bounds, seeds=1)


def _end(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean over the last tenth of the steps, else the last finite value, or None without one."""
    # A diverged step would make the mean of the whole tenth infinite or NaN.
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
    head, position = divmod(index, 26)
    return (_letter(head - 1) if head else "") + chr(ord("A") + position)


def _settings(groups: Sequence[RunGroup]) -> str:
    paths = differing_settings(groups)
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
    rows = []
    for name in names:
        finals = [final_metric(group, name) for group in groups]
        rows.append((name, [str(final) if final else "-" for final in finals]))
    return _table("figure, mean of the last tenth [95 %]", groups, rows)


def _table(heading: str, groups: Sequence[RunGroup], rows: Iterable[tuple[str, list[str]]]) -> str:
    table = Table(heading, box=box.SIMPLE)
    for index in range(len(groups)):
        table.add_column(_letter(index), overflow="fold")
    for name, cells in rows:
        table.add_row(*(Text(escape_for_terminal(cell)) for cell in (name, *cells)))
    return render_table(table, max(110, 44 + 26 * len(groups))).strip("\n")
