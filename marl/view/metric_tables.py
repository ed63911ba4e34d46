"""Tables of the newest metrics of roles and of policies, with the columns that fit the width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from marl.host.outside import escape_for_terminal
from marl.view.curves import sparkline

Rows = Sequence[Mapping[str, Any]]
_GAP = 2
_LONGEST_NAME = 28
_TREND = 16
"""Width of the sparkline of a role's return [characters]."""
_TREND_ROWS = 200
_MOST = 12
"""Maximum number of roles or policies in a table."""


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    cells: Mapping[str, str]
    """Name of a role or policy -> text."""
    rank: int
    """Priority of the column, 0 first. Columns of high rank are dropped where space is short."""

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.heading, *self.cells.values()))


def latest_values(rows: Rows) -> dict[str, tuple[int, float]]:
    """Return metric -> (step, value) of its last measurement."""
    return {name: (row["step"], value) for row in rows for name, value in row.items() if name != "step"}


def role_table(rows: Rows, width: int) -> Table | None:
    """Return a table of return, length and failures of each role in its newest step, or None without roles.

    The return is the sum of all reward components of the role's seats in an episode.
    """
    latest = {name: value for name, (_, value) in latest_values(rows).items()}
    roles = _named(latest, "role")
    if not roles:
        return None
    returns = {role: [_return(row, role) for row in rows[-_TREND_ROWS:]] for role in roles}
    trends = {role: [value for value in values if value is not None] for role, values in returns.items()}

    def column(heading: str, figure: str, form: str, rank: int) -> _Column:
        return _Column(heading, {role: _text(latest.get(f"role/{role}/{figure}"), form) for role in roles}, rank)

    columns = [
        _Column("return", {role: _text(trends[role][-1] if trends[role] else None, "+.3g") for role in roles}, 0),
        _Column("trend", {role: sparkline(trends[role], _TREND) for role in roles}, 5),
        column("turns", "turns", ".0f", 4),
        column("tokens/turn", "tokens", ".3g", 2),
        column("illegal", "illegal", ".1%", 1),
        column("cut off", "cut", ".1%", 6),
        column("entropy", "entropy", ".3g", 3),
        column("one move", "constant", ".0%", 7),
    ]
    return _table("role", roles, columns, width)


def policy_table(rows: Rows, width: int) -> Table | None:
    """Return a table of each policy's newest update, or None before the first update."""
    latest = {name: value for name, (_, value) in latest_values(rows).items()}
    policies = [name for name in _named(latest, "policy") if f"policy/{name}/loss" in latest]
    if not policies:
        return None

    def column(heading: str, figure: str, rank: int) -> _Column:
        return _Column(heading, {p: _text(latest.get(f"policy/{p}/{figure}"), ".3g") for p in policies}, rank)

    ends = dict.fromkeys(name.rpartition("/")[2] for name in latest if name.startswith("policy/"))
    divergences = sorted((end for end in ends if end.startswith("kl_")), key=lambda end: end == "kl_sampler")
    columns = [column("loss", "loss", 0)]
    columns += [column(end.replace("_", " "), end, 2 + rank) for rank, end in enumerate(divergences)]
    columns += [column("entropy", "entropy", 1), column("lr", "lr", 1), column("|grad|", "grad_norm", 8)]
    columns += [column("clipped", "clip_fraction", 9), column("samples", "samples", 10)]
    return _table("policy", policies, columns, width)


def _named(names: Iterable[str], scope: str) -> list[str]:
    """Return the names of roles or policies in the metrics, in order of appearance. Such a name contains no slash."""
    return list(dict.fromkeys(name.split("/")[1] for name in names if name.startswith(f"{scope}/") and "/" in name))


def _return(row: Mapping[str, Any], role: str) -> float | None:
    values = [value for name, value in row.items() if name.startswith(f"role/{role}/reward/")]
    return sum(values) if values else None


def _text(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return format(value, form) if isfinite(value) else str(value)


def _table(title: str, names: Sequence[str], columns: Sequence[_Column], width: int) -> Table:
    listed_names = names[:_MOST]
    longest = min(_LONGEST_NAME, max(cell_len(escape_for_terminal(name)) for name in (*listed_names, title)))
    # Columns are admitted by rank, but appear in their declared order.
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
