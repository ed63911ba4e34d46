"""`marl new`: write a commented scenario that runs at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.starter import Kind, inspect_data, starter_yaml
from marl.commands.terminal import echo
from marl.core.errors import Writing
from marl.host.data_files import write_atomically
from marl.scenario.load import ScenarioError, load

app = typer.Typer()


@dataclass(frozen=True)
class NewOptions:
    """Options of `marl new`."""

    out: Annotated[Path | None, typer.Option(help="The file to write; default: KIND.yaml.")] = None
    data: Annotated[
        Path | None, typer.Option(help="Questions and answers, for a team: .csv, .jsonl, .jsonl.zst or .parquet.")
    ] = None
    question: Annotated[str | None, typer.Option(help="Its column of questions; default: found by usual names.")] = None
    answer: Annotated[str | None, typer.Option(help="Its column of answers; default: found by usual names.")] = None
    model: Annotated[
        str | None, typer.Option(help="A model's folder, or its name on the hub; default: a tiny model.")
    ] = None
    game: Annotated[str, typer.Option(help="Game of self-play; marl list games shows the choices.")] = "kuhn_poker"


@app.command()
@with_options(NewOptions)
def new(
    kind: Annotated[Kind, typer.Argument(help="Kind of scenario.", show_default=False)], options: NewOptions
) -> None:
    """Write a commented scenario that runs at once: self-play, a team, or one role of a team."""
    file = options.out or Path(f"{kind}.yaml")
    if file.exists():
        raise ScenarioError(f"{file} exists already; choose another by --out")
    if kind == "self-play" and options.data:
        raise ScenarioError(f"--data {options.data}: a game has no questions; choices: team, one-role")
    data = inspect_data(options.data, options.question, options.answer) if options.data else None
    text = starter_yaml(kind, file, options.model, game=options.game, data=data)
    with Writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())
    # The written file is read again, so that a faulty template is noticed here and not at `marl train`.
    load(file)
    if data:
        answers = "numbers" if data.numeric else "texts that must be equal"
        columns = f"{data.question!r} -> {data.answer!r} ({answers})"
        echo(f"{data.path}: {data.rows} rows, {data.held_out} held out; {columns}")
    echo(f"{file}: next, marl check {file}; marl train {file}")
