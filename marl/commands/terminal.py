"""Arguments that several commands share, and printing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marl.core.config import choices_hint
from marl.host.outside import escape_for_terminal
from marl.scenario.credit_checks import credit_notes
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError

ScenarioFile = Annotated[Path, typer.Argument(help="A scenario (YAML).", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.path=value", show_default=False)]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]
ScenarioOrRun = Annotated[Path, typer.Argument(help="A scenario (YAML) or a run's folder.", show_default=False)]


def is_run_folder(target: Path) -> bool:
    """Return True if `target` is a folder, and False if it is a file.

    Raises:
        ScenarioError: if `target` does not exist; names similar runs and scenarios beside it.
    """
    # Click's own check of paths knows no suggestions.
    if not target.exists():
        entries = target.parent.iterdir() if target.parent.is_dir() else ()
        choices = [path.name for path in entries if path.suffix == ".yaml" or (path / "scenario.yaml").is_file()]
        raise ScenarioError(f"{target}: no run and no scenario; {choices_hint(target.name, choices)}")
    return target.is_dir()


def echo(text: object) -> None:
    """Print `text` with its terminal escape sequences made visible."""
    typer.echo(escape_for_terminal(str(text)))


def print_notes(scenario: Scenario) -> None:
    """Print notes on credit settings that are valid but rarely intended."""
    for note in credit_notes(scenario):
        echo(f"note: {note}")
