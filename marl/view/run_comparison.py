"""Comparison of runs (`marl compare`): differing settings, and final metrics with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from marl.core.config import choices_hint
from marl.core.statistics import student_t_interval
from marl.host.untrusted_text import escape_for_terminal
from marl.metrics.trajectory_metrics import held_out_metric_names, metric_names_in_all_games
from marl.scenario.load import ScenarioError
from marl.view.number_format import format_metric_value
from marl.view.run_groups import RunGroup, differing_settings, group_runs, metric_rows_of_all_runs
from marl.view.text_table import render_table

_FIGURES = ("eval/nashconv", "eval/average/nashconv", "eval/optimal", "eval/random/win", "eval/minimax/draw")
CUMULATIVE = ("step/tokens", "step/eval_tokens")
"""Metrics that accumulate from the run's start."""
_LONGEST = 40
"""Length limit of a setting's value [characters]."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinalMetricOfRunGroup:
    """Final value of a metric, averaged over the runs of a group."""

    value: float
    low: float | None
    """Lower bound of the 95 % interval over seeds, or as recorded by a single run (None: unknown)."""
    high: float | None
    """Upper bound of the 95 % interval over seeds, or as recorded by a single run (None: unknown)."""
    seeds: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return format_metric_value(self.value)
        return f"{format_metric_value(self.value)} [{format_metric_value(self.low)}, {format_metric_value(self.high)}]"


def compare_runs(runs: Sequence[Path], metrics: Sequence[str] = ()) -> str:
    """Return a table of the settings in which runs differ, and a table of their final metrics.

    Runs that differ only in their seeds share a column, with means over seeds and Student's t intervals. The final
    value of a run is the mean over the last tenth of its steps, and of a cumulative metric its last value.

    Raises:
        ScenarioError: if a folder contains no run, or no run has one of the metrics.
    """
    groups = group_runs(runs)
    names = list(dict.fromkeys(chain.from_iterable(metric_rows_of_all_runs(groups))))
    for name in metrics:
        if name not in names:
            raise ScenarioError(f"--metric {name}: not in these runs; {choices_hint(name, names)}")
    legend: list[str] = []
    for index, group in enumerate(groups):
        steps = dict.fromkeys(str(rows[-1]["step"]) if rows else "0" for rows in group.rows)
        legend.append(f"{_spreadsheet_column_letters(index)}: {group.name} (step {', '.join(steps)})")
    settings: list[tuple[str, list[str]]] = []
    for path in differing_settings(groups):
        cells: list[str] = []
        for group in groups:
            text = group.setting_as_yaml_text(path)
            text = "-" if text is None else text
            cells.append(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
        settings.append((path, cells))
    figures: list[tuple[str, list[str]]] = []
    for name in metrics or select_summary_metrics(names):
        figures.append((name, [str(final_metric_of_group(group, name) or "-") for group in groups]))

    parts = ["\n".join(legend)]
    if settings:
        parts.append(_table_of_run_groups("setting", groups, settings))
    elif len(groups) == 1:
        parts.append("The settings are the same, but for seeds.")
    heading = "figure, mean of the last tenth [95 %]; totals at the end"
    parts.append(_table_of_run_groups(heading, groups, figures) if figures else "Nothing was measured yet.")
    return "\n\n".join(parts)


def select_summary_metrics(names: Sequence[str]) -> list[str]:
    """Return the metrics that summarize a run: held-out success, exact metrics, wins, returns and token totals."""
    chosen = [*held_out_metric_names(names), *metric_names_in_all_games(_FIGURES, names)]
    chosen += [name for name in names if name.startswith("episode/return/")]
    return list(dict.fromkeys(chosen + [name for name in CUMULATIVE[:1] if name in names]))


def final_metric_of_group(group: RunGroup, metric: str) -> FinalMetricOfRunGroup | None:
    """Return the metric's final value in a group of runs, or None if no run measured it."""
    ends = [end for rows in group.rows if (end := _final_metric_value_of_run(rows, metric)) is not None]
    if not ends:
        return None
    if len(ends) > 1:
        low, mean, high = student_t_interval(ends)
        return FinalMetricOfRunGroup(mean, low, high, len(ends))
    rows = group.rows[0]
    return FinalMetricOfRunGroup(
        ends[0],
        _final_metric_value_of_run(rows, f"{metric}_low"),
        _final_metric_value_of_run(rows, f"{metric}_high"),
        seeds=1,
    )


def _final_metric_value_of_run(rows: Sequence[Row], metric: str) -> float | None:
    """Return the mean of `metric` over the last tenth of the steps, the last finite value, or None without values.

    Of a cumulative metric the last value is returned, the run's total.
    """
    # Non-finite values are left out, so that one diverged step does not make the mean infinite or NaN.
    values, late_values = list[float](), list[float]()
    for row in rows:
        if metric in row and isfinite(row[metric]):
            values.append(row[metric])
            if row["step"] >= 0.9 * rows[-1]["step"]:
                late_values.append(row[metric])
    if is_cumulative_metric(metric):
        return values[-1] if values else None
    return fmean(late_values or values[-1:]) if values else None


def is_cumulative_metric(metric: str) -> bool:
    """Return True if the metric accumulates over a run, so that the last value is the run's total."""
    return metric in CUMULATIVE or (metric.startswith("policy/") and "/total_" in metric)


def _spreadsheet_column_letters(index: int) -> str:
    """Return a column's name: A, B, …, Z, AA, …."""
    head, position = divmod(index, 26)
    return (_spreadsheet_column_letters(head - 1) if head else "") + chr(ord("A") + position)


def _table_of_run_groups(heading: str, groups: Sequence[RunGroup], rows: Iterable[tuple[str, list[str]]]) -> str:
    """Return a table with a column for each group. A row is (name, text for each group)."""
    table = Table(heading, box=box.SIMPLE)
    for index in range(len(groups)):
        table.add_column(_spreadsheet_column_letters(index), overflow="fold")
    for name, cells in rows:
        table.add_row(*(Text(escape_for_terminal(cell)) for cell in (name, *cells)))
    return render_table(table, max(110, 44 + 26 * len(groups))).strip("\n")
