"""Results of a tournament: standings and matrix as text, and a picture of the matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from marl.core.errors import Writing
from marl.evaluation.cross_table import CrossScore, CrossTable
from marl.host.outside import escape_for_terminal
from marl.view.text_table import render_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_COLUMNS = 10
"""Maximum number of players in the printed matrix. The file and the picture have no such limit."""
_MOST_NUMBERS = 15
"""Maximum number of players for numbers in the picture's cells."""
_DARK = 0.6
"""Fraction of the largest value above which a cell's colour is dark."""
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


def save_heat_map(path: Path, table: CrossTable) -> None:
    """Write a picture of the mean returns of rows against columns.

    Raises:
        FolderError: if the picture cannot be written.
    """
    import matplotlib as mpl

    # Matplotlib would parse a `$` in a player's name as the start of a formula.
    with mpl.rc_context({"text.parse_math": False, "text.usetex": False}), Writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _heat_map(table).savefig(path, dpi=130, bbox_inches="tight")


def _heat_map(table: CrossTable) -> Figure:
    from matplotlib.figure import Figure

    means = [[cell.mean if cell else float("nan") for cell in row] for row in table.cells]
    names, numbers = short_names(table.names), range(len(table.names))
    figure = Figure(figsize=(2.5 + 0.6 * len(names), 1.5 + 0.5 * len(names)))
    axis = figure.subplots()
    reach = max((abs(mean) for _, _, mean in _numbered(means)), default=1.0) or 1.0
    image = axis.imshow(means, cmap="RdBu", vmin=-reach, vmax=reach)
    axis.set_xticks(numbers, names, rotation=90, fontsize=8)
    axis.set_yticks(numbers, names, fontsize=8)
    axis.set_title("mean return of the row against the column", fontsize=10)
    if len(names) <= _MOST_NUMBERS:
        for row, column, mean in _numbered(means):
            colour = "white" if abs(mean) > _DARK * reach else "black"
            axis.text(column, row, f"{mean:.2f}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=axis)
    return figure


def _numbered(means: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, float]]:
    """Yield row, column and value of every played pairing."""
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            if value == value:  # false for NaN, the value of an unplayed pairing
                yield row, column, value
