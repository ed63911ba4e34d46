"""`marl show`: recorded dialogues of a run as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import RunPath

app = typer.Typer()


@dataclass(frozen=True)
class ShowOptions:
    """Options of `marl show`."""

    step: Annotated[int | None, typer.Option(min=1, help="Which recorded step; default: the newest.")] = None
    role: Annotated[str | None, typer.Option(help="Only this role's turns, and its rewards.")] = None
    unreadable: Annotated[bool, typer.Option("--unreadable", help="Only turns that could not be read.")] = False
    best: Annotated[
        bool | None, typer.Option("--best/--worst", help="Highest or lowest rewards first; default: as played.")
    ] = None
    episodes: Annotated[int, typer.Option(min=1, help="Most episodes that are shown.")] = 3
    whole: Annotated[bool, typer.Option("--whole", help="Whole prompts and texts, verifiers' turns too.")] = False
    graph: Annotated[
        Path | None,
        typer.Option(help="Draw the first of these episodes as a graph of who led to whom: .png, .svg, .pdf."),
    ] = None


@app.command()
@with_options(ShowOptions)
def show(run: RunPath, options: ShowOptions) -> None:
    """Show recorded dialogues: what each turn was asked, said, was read as and earned. Reads the run's folder only."""
    from rich.console import Console

    from marl.view.dialogue import Selection, chosen_episodes, dialogues

    order = "played" if options.best is None else "best" if options.best else "worst"
    selection = Selection(options.step, options.role, options.unreadable, order, options.episodes, options.whole)
    if options.graph is not None:
        from marl.view.graph_picture import check_picture, draw_graph

        check_picture(options.graph)
        draw_graph(chosen_episodes(run, selection)[0], options.graph)
        typer.echo(options.graph)
        return
    console = Console()
    for line in dialogues(run, selection):
        console.print(line, soft_wrap=True)
