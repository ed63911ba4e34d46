"""A tournament's figures for people: standings and a matrix in text, and a picture of the matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from marl.errors import Writing
from marl.evaluation.cross_table import CrossScore, CrossTable
from marl.evaluation.glicko import GlickoRating
from marl.evaluation.ratings import EloRating
from marl.text import for_terminal
from marl.view.text_table import rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_COLUMNS = 10
"""Most players whose matrix is printed; the file and the picture hold larger ones."""
_MOST_NUMBERS = 15
"""Most players for which the picture's cells have numbers in them."""
_DARK = 0.6
"""Share of the largest value from which a cell's colour is dark."""
_TITLES = {"elo": "Elo", "glicko": "Glicko-2"}
_WIDTH = 1000
"""As wide as it needs to be: what a terminal breaks can be read, what is cut cannot."""


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last part of each path, or as many of its last parts as tell it from the others."""
    parts = [Path(name).parts for name in names]
    for many in range(1, max(map(len, parts)) + 1):
        short = ["/".join(each[-many:]) for each in parts]
        if max(Counter(short).values()) == 1:
            return short
    return list(names)


def standings(table: CrossTable) -> str:
    """Return players from the best to the worst, and the mean returns of rows against columns."""
    names = short_names(table.names)
    parts = [rendered(_ranking(table, names), _WIDTH)] if table.ratings else []
    if len(names) <= _MOST_COLUMNS:
        parts.append("mean return of rows against columns, and half the width of its 95 % interval")
        parts.append(rendered(_matrix(table, names), _WIDTH))
    return "\n".join([*parts, *([table.unrated] if table.unrated else [])])


def _ranking(table: CrossTable, names: Sequence[str]) -> Table:
    shown = Table(box=box.SIMPLE)
    shown.add_column("player")
    for title in (_TITLES[table.rating], "95 % interval", "mean return", "in equilibrium"):
        shown.add_column(title, justify="right")
    equilibrium = table.equilibrium
    for number in sorted(range(len(names)), key=lambda number: -_points(table.ratings[number])):
        rated = table.ratings[number]
        means = [cell.mean for column, cell in enumerate(table.cells[number]) if cell and column != number]
        share = 0.0 if equilibrium is None else equilibrium[number]
        sign = "+" if table.rating == "elo" else ""  # Elo is shown about 0, Glicko about 1500
        interval = f"[{rated.low:{sign}.0f}, {rated.high:{sign}.0f}]"
        figures = (f"{_points(rated):{sign}.0f}", interval, f"{sum(means) / len(means):+.3f}", f"{share:.3f}")
        shown.add_row(_plain(names[number]), *figures)
    return shown


def _points(rated: EloRating | GlickoRating) -> float:
    return rated.elo if isinstance(rated, EloRating) else rated.rating


def _matrix(table: CrossTable, names: Sequence[str]) -> Table:
    shown = Table(box=box.SIMPLE)
    shown.add_column("")
    for number in range(1, len(names) + 1):
        shown.add_column(str(number), justify="right")
    for number, (name, row) in enumerate(zip(names, table.cells, strict=True), start=1):
        shown.add_row(_plain(f"{number} {name}"), *map(_in_cell, row))
    return shown


def _in_cell(cell: CrossScore | None) -> str:
    return f"{cell.mean:+.3f} ±{cell.mean_high - cell.mean:.3f}" if cell else "-"


def _plain(text: str) -> Text:
    return Text(for_terminal(text))


def draw_matrix(path: Path, table: CrossTable) -> None:
    """Write a picture of the mean returns of rows against columns.

    Raises:
        FolderError: if it cannot be written.
    """
    import matplotlib as mpl

    # Names are no formulas: a `$` in one of them would be an error, or drawn as mathematics.
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
    """Yield row, column and value of every cell that was played."""
    for row, values in enumerate(means):
        yield from ((row, column, value) for column, value in enumerate(values) if value == value)
