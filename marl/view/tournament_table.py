"""Results of a tournament: standings and matrix as text, and a picture of the matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from marl.evaluation.cross_table import CrossScore, CrossTable
from marl.host.outside import escape_for_terminal
from marl.view.text_table import render_table

if TYPE_CHECKING:
    pass

_MOST_COLUMNS = 10
"""Maximum number of players in the printed matrix. The file and the picture have no such limit."""
_WIDTH = 1000
"""Wide enough for any table: a terminal wraps long lines legibly, whereas rich would truncate them."""


def short_names(names: Sequence[str]) -> list[str]:
    """Return the shortest path suffixes, in whole components, that distinguish all names."""
    parts = [Path(name).parts for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(components[-length:]) for components in parts]
        if max(Counter(short).values()) == 1:
            return short
    return list(names)


def standings_text(table: CrossTable) -> str:
    """Return the players from best to worst, and the mean returns of rows against columns."""
    names = short_names(table.names)
    parts = [render_table(_ranking(table, names), _WIDTH)] if table.ratings else []
    if len(names) <= _MOST_COLUMNS:
        parts.append("mean return of rows against columns, and half the width of its 95 % interval")
        parts.append(render_table(_matrix(table, names), _WIDTH))
    return "\n".join([*parts, *([table.unrated] if table.unrated else [])])


def _ranking(table: CrossTable, names: Sequence[str]) -> Table:
    ranking = Table(box=box.SIMPLE)
    ranking.add_column("player")
    for title in ("Elo", "95 % interval", "mean return", "in equilibrium"):
        ranking.add_column(title, justify="right")
    equilibrium = table.equilibrium
    for number in sorted(range(len(names)), key=lambda number: -table.ratings[number].elo):
        rated = table.ratings[number]
        means = [cell.mean for column, cell in enumerate(table.cells[number]) if cell and column != number]
        share = 0.0 if equilibrium is None else equilibrium[number]
        interval = f"[{rated.low:+.0f}, {rated.high:+.0f}]"
        figures = (f"{rated.elo:+.0f}", interval, f"{sum(means) / len(means):+.3f}", f"{share:.3f}")
        ranking.add_row(_escaped(names[number]), *figures)
    return ranking


def _matrix(table: CrossTable, names: Sequence[str]) -> Table:
    matrix = Table(box=box.SIMPLE)
    matrix.add_column("")
    for number in range(1, len(names) + 1):
        matrix.add_column(str(number), justify="right")
    for number, (name, row) in enumerate(zip(names, table.cells, strict=True), start=1):
        matrix.add_row(_escaped(f"{number} {name}"), *map(_in_cell, row))
    return matrix


def _in_cell(cell: CrossScore | None) -> str:
    return f"{cell.mean:+.3f} ±{cell.mean_high - cell.mean:.3f}" if cell else "-"


def _escaped(text: str) -> Text:
    return Text(escape_for_terminal(text))
