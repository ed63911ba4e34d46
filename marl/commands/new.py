"""`marl new`: a commented scenario that runs at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.starter import Kind, read_data, starter
from marl.commands.terminal import echo
from marl.data_files import write_whole
from marl.errors import Writing
from marl.scenario.load import ScenarioError, load

app = typer.Typer()


@dataclass(frozen=True)
class NewOptions:
    """Options of `marl new`."""

    out: Annotated[Path | None, typer.Option(help="The file to write; default: KIND.yaml.")] = None
    data: Annotated[
        Path | None, typer.Option(help="Questions and answers, for a team: .csv, .jsonl, .jsonl.zst or .parquet.")
    ] = None
    question: Annotated[str | None, typer.Option(help="Its column of questions; default: by its usual names.")] = None
    answer: Annotated[str | None, typer.Option(help="Its column of answers; default: by its usual names.")] = None
    model: Annotated[
        str | None, typer.Option(help="A model's folder, or its name on the hub; default: a tiny one is made.")
    ] = None
    game: Annotated[str, typer.Option(help="Of self-play; marl list games shows them.")] = "kuhn_poker"


@app.command()
@with_options(NewOptions)
def new(
    kind: Annotated[Kind, typer.Argument(help="What is to be trained.", show_default=False)], options: NewOptions
) -> None:
    """Write a commented scenario that runs at once: a model against itself, a team, or one role of a team."""
    file = options.out or Path(f"{kind}.yaml")
    if file.exists():
        raise ScenarioError(f"{file} exists already; choose another by --out")
    if kind == "self-play" and options.data:
        raise ScenarioError(f"--data {options.data}: a game has no questions; choices: team, one-role")
    data = read_data(options.data, options.question, options.answer) if options.data else None
    text = starter(kind, file, options.model, game=options.game, data=data)
    with Writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text.encode())
    load(file)
    if data:
        answers = "numbers" if data.numeric else "texts that must be equal"
        echo(
            f"{data.path}: {data.rows} rows, {data.held_out} held out; {data.question!r} -> {data.answer!r} ({answers})"
        )
    echo(f"{file}: next, marl check {file}; marl train {file}")
