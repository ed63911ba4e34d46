"""Rendering of rich tables to plain text."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table


def render_table(table: Table, width: int) -> str:
    """Return `table` as text without colours, at most `width` characters wide."""
    # Trailing spaces are cut, so that the text is stable in files and comparisons.
    text = StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())
