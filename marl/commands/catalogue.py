"""Commands about the plug-ins and settings of scenarios: `marl list`, `describe`, `schema`, `tiny`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.terminal import echo
from marl.core.config import choices_hint
from marl.core.plugins import GROUPS, add_import_folder, import_check, known_kinds, plugin_summary
from marl.evaluation.suite import Suite
from marl.models.tiny import Tiny
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.view.settings_reference import describe_plugin_or_setting as settings_text

app = typer.Typer()


@app.command(name="list")
def list_plugins(kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(GROUPS)}.")] = None) -> None:
    """List the plug-ins that a scenario can name, those of installed packages included."""
    if kind is not None and kind not in GROUPS:
        raise ScenarioError(f"no group of parts {kind!r}; {choices_hint(kind, GROUPS)}")
    for group in [kind] if kind else GROUPS:
        for name in known_kinds(group):
            echo(f"{group:<11} {name:<20} {plugin_summary(group, name)}")


@app.command(name="describe")
def describe_settings(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP] NAME", help="A kind (grpo, role solver), a section (schedule), a setting (grpo.reference)."
        ),
    ] = None,
) -> None:
    """Print every setting of a plug-in or a section: its type, default and meaning, with an example."""
    # The user typed the import path, which is consent to import it, also from the working folder.
    import_check.set(None)
    if any(":" in word for word in words or ()):
        add_import_folder(Path.cwd())
    echo(settings_text(words or []))


@app.command(name="schema")
def print_json_schema(file: Annotated[str, typer.Argument(help="scenario or suite")] = "scenario") -> None:
    """Print the JSON Schema of scenario files or of suites, for editors.

    The schema of the shipped scenarios is scenarios/.schema.json.
    """
    settings = {"scenario": Scenario, "suite": Suite}
    if file not in settings:
        raise ScenarioError(f"no schema of {file!r}; {choices_hint(file, settings)}")
    echo(json.dumps(settings[file].model_json_schema(), indent=1))


@app.command(name="tiny")
def create_tiny_model(
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    hidden: Annotated[int, typer.Option(min=2)] = 64,
    layers: Annotated[int, typer.Option(min=1)] = 2,
    architecture: Annotated[str, typer.Option(help="llama or qwen3")] = "llama",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Make a tiny language model with random weights and a byte tokenizer, as a Hugging Face folder."""
    if out.exists():
        raise ScenarioError(f"--out {out}: exists already")
    fields = {"architecture": architecture, "hidden": hidden, "layers": layers, "seed": seed, "vocabulary": "bytes"}
    settings = Tiny.model_validate(fields)
    from marl.models.tiny_build import build_tiny_model  # imported after the validation, because the import loads torch

    echo(f"{out}: {build_tiny_model(settings, out, ()):,} parameters")
