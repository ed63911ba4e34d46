"""Commands about what a scenario can name: `marl list`, `describe`, `schema`, `tiny`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.terminal import echo
from marl.config import nearest
from marl.parts import GROUPS, find, import_gate, names
from marl.scenario.load import ScenarioError

app = typer.Typer()


@app.command(name="list")
def list_parts(kind: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(GROUPS)}.")] = None) -> None:
    """List the parts that a scenario can name, plug-ins included."""
    if kind is not None and kind not in GROUPS:
        raise ScenarioError(f"no group of parts {kind!r}; {nearest(kind, GROUPS)}")
    for group in [kind] if kind else GROUPS:
        for name in names(group):
            echo(f"{group:<11} {name:<20} {_line(group, name)}")


def _line(group: str, kind: str) -> str:
    try:
        part = find(group, kind)
    except ValueError as error:
        return f"unusable: {error}"
    return (part.__doc__ or "").strip().split("\n")[0]


@app.command()
def describe(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP] NAME", help="A kind (grpo, role solver), a section (schedule), a setting (grpo.reference)."
        ),
    ] = None,
) -> None:
    """Print every setting of a part or a section: its type, default and meaning, with an example."""
    from marl.view.describe import describe as described

    import_gate.set(None)  # an import path that was typed needs no further consent
    echo(described(words or []))


@app.command()
def schema(file: Annotated[str, typer.Argument(help="scenario or suite")] = "scenario") -> None:
    """Print the JSON Schema of scenario files or of suites, for editors; ours is scenarios/.schema.json."""
    from marl.evaluation.suite import Suite
    from marl.scenario.schema import Scenario

    settings = {"scenario": Scenario, "suite": Suite}
    if file not in settings:
        raise ScenarioError(f"no schema of {file!r}; {nearest(file, settings)}")
    echo(json.dumps(settings[file].model_json_schema(), indent=1))


@app.command()
def tiny(
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    hidden: Annotated[int, typer.Option(min=2)] = 64,
    layers: Annotated[int, typer.Option(min=1)] = 2,
    architecture: Annotated[str, typer.Option(help="llama or qwen3")] = "llama",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Make a tiny language model with random weights and a byte tokenizer, as a Hugging Face folder."""
    from marl.models.tiny import Tiny

    if out.exists():
        raise ScenarioError(f"--out {out}: exists already")
    fields = {"architecture": architecture, "hidden": hidden, "layers": layers, "seed": seed, "vocabulary": "bytes"}
    settings = Tiny.model_validate(fields)
    from marl.models.tiny_build import build_tiny  # takes seconds, so after all that can be wrong

    echo(f"{out}: {build_tiny(settings, out, ()):,} parameters")
