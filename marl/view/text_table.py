"""Tables of rich as plain text, for messages and files."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table


def rendered(table: Table, width: int) -> str:
    """Return a table as text without colours, at most `width` characters wide."""
    text = StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())
