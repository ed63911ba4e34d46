"""Arguments that several commands share, and printing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marl.scenario.credit_checks import notes
from marl.scenario.schema import Scenario
from marl.text import for_terminal

File = Annotated[Path, typer.Argument(help="A scenario (YAML).", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.path=value", show_default=False)]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]


def echo(text: object) -> None:
    """Print text, with escape sequences spelled out."""
    typer.echo(for_terminal(str(text)))


def tell(scenario: Scenario) -> None:
    """Print what is noteworthy about a scenario."""
    for note in notes(scenario):
        echo(f"note: {note}")
