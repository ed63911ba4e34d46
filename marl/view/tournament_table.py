"""Results of a tournament: standings and matrix as text, and a picture of the matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from marl.evaluation.cross_table import CrossPlayTable
from marl.host.untrusted_text import escape_for_terminal
from marl.view.text_table import render_table

_MOST_COLUMNS = 10
"""Maximum number of players in the printed matrix. The file and the picture have no such limit."""
_WIDTH = 1000
"""Width of tables [characters], so large that rich truncates no line. A terminal wraps long lines legibly."""


def shortest_distinct_path_suffixes(paths: Sequence[str]) -> list[str]:
    """Return the shortest path suffixes, in whole components, that distinguish all names."""
    parts = [Path(name).parts for name in paths]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(components[-length:]) for components in parts]
        if max(Counter(short).values()) == 1:
            return short
    return list(paths)


def ranking_and_cross_play_text(table: CrossPlayTable) -> str:
    """Return the players from best to worst, and the mean returns of rows against columns."""
    names = shortest_distinct_path_suffixes(table.names)
    parts: list[str] = []
    if table.ratings:
        ranking = Table(box=box.SIMPLE)
        ranking.add_column("player")
        for title in ("Elo", "95 % interval", "mean return", "in equilibrium"):
            ranking.add_column(title, justify="right")
        equilibrium = table.nash_mixture
        for number in sorted(range(len(names)), key=lambda number: -table.ratings[number].elo):
            rated = table.ratings[number]
            means = [cell.mean for column, cell in enumerate(table.score_matrix[number]) if cell and column != number]
            share = 0.0 if equilibrium is None else equilibrium[number]
            interval = f"[{rated.low:+.0f}, {rated.high:+.0f}]"
            figures = (f"{rated.elo:+.0f}", interval, f"{sum(means) / len(means):+.3f}", f"{share:.3f}")
            ranking.add_row(_escaped_cell(names[number]), *figures)
        parts.append(render_table(ranking, _WIDTH))
    if len(names) <= _MOST_COLUMNS:
        parts.append("mean return of rows against columns, and half the width of its 95 % interval")
        matrix = Table(box=box.SIMPLE)
        matrix.add_column("")
        for number in range(1, len(names) + 1):
            matrix.add_column(str(number), justify="right")
        for number, (name, row) in enumerate(zip(names, table.score_matrix, strict=True), start=1):
            cells = [f"{cell.mean:+.3f} ±{cell.mean_high - cell.mean:.3f}" if cell else "-" for cell in row]
            matrix.add_row(_escaped_cell(f"{number} {name}"), *cells)
        parts.append(render_table(matrix, _WIDTH))
    return "\n".join([*parts, *([table.no_ratings_reason] if table.no_ratings_reason else [])])


def _escaped_cell(text: str) -> Text:
    """Return `text` for a cell, with control characters escaped."""
    return Text(escape_for_terminal(text))
