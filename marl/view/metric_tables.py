"""Tables of the newest metrics of roles and of policies, with the columns that fit the width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from marl.host.untrusted_text import escape_for_terminal
from marl.view.curves import sparkline

Rows = Sequence[Mapping[str, Any]]
"""Rows of metrics (name -> value), oldest first."""
_GAP = 2
"""Space between two columns [characters]."""
_LONGEST_NAME = 28
"""Maximum width of the column of names [characters]."""
_TREND = 16
"""Width of the sparkline of a role's return [characters]."""
_TREND_ROWS = 200
"""Number of newest rows in the sparkline of a role's return."""
_MOST = 12
"""Maximum number of roles or policies in a table."""


@dataclass(frozen=True, slots=True)
class _MetricColumn:
    """Column of a table of roles or policies."""

    heading: str
    cells: Mapping[str, str]
    """Name of a role or policy -> text of its cell in this column."""
    rank: int
    """Priority of the column, 0 first. Columns of high rank are dropped where space is short."""

    @property
    def width(self) -> int:
        """Width of the column [characters]."""
        return max(map(cell_len, (self.heading, *self.cells.values())))


def latest_step_and_value(rows: Rows) -> dict[str, tuple[int, float]]:
    """Return metric -> (step, value) of its last measurement."""
    latest: dict[str, tuple[int, float]] = {}
    for row in rows:
        step = row["step"]
        latest |= {name: (step, value) for name, value in row.items() if name != "step"}
    return latest


def role_table(rows: Rows, width: int) -> Table | None:
    """Return a table of return, length and failures of each role in its newest step, or None without roles.

    The return is the sum of all reward components of the role's seats in an episode.
    """
    latest = latest_step_and_value(rows)
    roles = _role_or_policy_names(latest, "role")
    if not roles:
        return None
    returns: dict[str, str] = {}
    trends: dict[str, str] = {}
    for role in roles:
        history: list[float] = []
        for row in rows[-_TREND_ROWS:]:
            rewards = [value for name, value in row.items() if name.startswith(f"role/{role}/reward/")]
            if rewards:
                history.append(sum(rewards))
        returns[role] = _format_number(history[-1] if history else None, "+.3g")
        trends[role] = sparkline(history, _TREND)
    columns = [_MetricColumn("seats' return", returns, 0), _MetricColumn("trend", trends, 5)]
    for heading, figure, format_spec, rank in (
        ("turns", "turns", ".0f", 4),
        ("tokens/turn", "tokens", ".3g", 2),
        ("illegal", "illegal", ".1%", 1),
        ("cut off", "cut", ".1%", 6),
        ("entropy", "entropy", ".3g", 3),
        ("one move", "constant", ".0%", 7),
    ):
        columns.append(
            _MetricColumn(heading, _metric_text_by_role_or_policy(latest, "role", roles, figure, format_spec), rank)
        )
    return _table_of_fitting_columns("role", roles, columns, width)


def policy_table(rows: Rows, width: int) -> Table | None:
    """Return a table of each policy's newest update, or None before the first update."""
    latest = latest_step_and_value(rows)
    policies = [name for name in _role_or_policy_names(latest, "policy") if f"policy/{name}/loss" in latest]
    if not policies:
        return None
    divergences: list[str] = []
    for name in latest:
        figure = name.rpartition("/")[2]
        if name.startswith("policy/") and figure.startswith("kl_") and figure not in divergences:
            divergences.append(figure)
    # KL from the sampler is sorted behind KL from anchors.
    divergences.sort(key=lambda figure: figure == "kl_sampler")
    ranks = {"loss": 0} | {figure: 2 + index for index, figure in enumerate(divergences)}
    ranks |= {"entropy": 1, "lr": 1, "grad_norm": 8, "clip_fraction": 9, "samples": 10}
    columns: list[_MetricColumn] = []
    for figure, rank in ranks.items():
        heading = {"grad_norm": "|grad|", "clip_fraction": "clipped"}.get(figure, figure.replace("_", " "))
        columns.append(
            _MetricColumn(heading, _metric_text_by_role_or_policy(latest, "policy", policies, figure, ".3g"), rank)
        )
    return _table_of_fitting_columns("policy", policies, columns, width)


def _role_or_policy_names(metrics: Iterable[str], scope: str) -> list[str]:
    """Return the names of roles (scope "role") or policies ("policy") with metrics, in order of appearance."""
    return list(dict.fromkeys(metric.split("/")[1] for metric in metrics if metric.startswith(f"{scope}/")))


def _metric_text_by_role_or_policy(
    latest_step_and_value_by_metric: Mapping[str, tuple[int, float]],
    scope: str,
    names: Sequence[str],
    metric: str,
    format_spec: str,
) -> dict[str, str]:
    """Return name of a role or policy -> text of the metric `SCOPE/NAME/METRIC`, for one column of a table."""
    cells: dict[str, str] = {}
    for name in names:
        _, value = latest_step_and_value_by_metric.get(f"{scope}/{name}/{metric}", (0, None))
        cells[name] = _format_number(value, format_spec)
    return cells


def _format_number(value: float | None, format_spec: str) -> str:
    """Return a number in a format such as ".3g", or "-" for None."""
    if value is None:
        return "-"
    return format(value, format_spec) if isfinite(value) else str(value)


def _table_of_fitting_columns(title: str, names: Sequence[str], columns: Sequence[_MetricColumn], width: int) -> Table:
    """Return a table with a row for each name, and with the columns that fit `width` by their rank."""
    listed_names = names[:_MOST]
    longest = min(_LONGEST_NAME, max(map(cell_len, map(escape_for_terminal, (*listed_names, title)))))
    # Low ranks are admitted first, but columns are shown in their declared order.
    used, fitting = longest, []
    for column in sorted(columns, key=lambda column: column.rank):
        if set(column.cells.values()) - {"-", ""} and used + _GAP + column.width <= width:
            used += _GAP + column.width
            fitting.append(column)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, overflow="ellipsis", width=longest)
    chosen = [column for column in columns if column in fitting]
    for column in chosen:
        table.add_column(column.heading, no_wrap=True, justify="left" if column.heading == "trend" else "right")
    for name in listed_names:
        table.add_row(Text(escape_for_terminal(name), "bold"), *(column.cells[name] for column in chosen))
    if len(names) > _MOST:
        table.add_row(f"+{len(names) - _MOST} more")
    return table
