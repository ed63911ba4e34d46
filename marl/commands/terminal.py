"""Arguments that several commands share, and printing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marl.core.config import did_you_mean
from marl.host.untrusted_text import escape_for_terminal
from marl.scenario.yaml_text import ScenarioError

ScenarioFile = Annotated[Path, typer.Argument(help="A scenario (YAML).", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="dotted.path=value", show_default=False)]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]
ScenarioOrRun = Annotated[Path, typer.Argument(help="A scenario (YAML) or a run's folder.", show_default=False)]


def is_run_folder(target: Path) -> bool:
    """Return True if `target` is a folder, and False if it is a file.

    Raises:
        ScenarioError: if `target` does not exist; the message names similar runs and scenarios beside it.
    """
    # Click could check that the path exists, but would not suggest similar names.
    if not target.exists():
        entries = target.parent.iterdir() if target.parent.is_dir() else ()
        choices = [path.name for path in entries if path.suffix == ".yaml" or (path / "scenario.yaml").is_file()]
        hint = did_you_mean(target.name, choices)
        raise ScenarioError(f"{target}: no run and no scenario; {hint}give a run's folder or a scenario (YAML)")
    return target.is_dir()


def echo(text: object) -> None:
    """Print `text` with its terminal escape sequences made visible."""
    typer.echo(escape_for_terminal(str(text)))
