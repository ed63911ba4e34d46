"""`marl show`: recorded dialogues of a run as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from marl.commands.options import with_options
from marl.commands.terminal import RunPath
from marl.view.colours import role_colours
from marl.view.dialogue import DialogueSelection, dialogue_lines, select_episodes
from marl.view.prompt_versions import prompt_version_lines

app = typer.Typer()


@dataclass(frozen=True)
class ShowOptions:
    """Options of `marl show`."""

    step: Annotated[int | None, typer.Option(min=1, help="Recorded step; default: the newest.")] = None
    role: Annotated[str | None, typer.Option(help="Only turns and rewards of this role.")] = None
    unreadable: Annotated[bool, typer.Option("--unreadable", help="Only turns with an unreadable answer.")] = False
    best: Annotated[
        bool | None, typer.Option("--best/--worst", help="Highest or lowest rewards first; default: as played.")
    ] = None
    episodes: Annotated[int, typer.Option(min=1, help="Maximum number of episodes.")] = 3
    whole: Annotated[bool, typer.Option("--whole", help="Full prompts and texts, and verifiers' turns.")] = False
    prompts: Annotated[
        bool,
        typer.Option("--prompts", help="Versions of learned instructions instead: differences, scores and gains."),
    ] = False
    graph: Annotated[
        Path | None,
        typer.Option(
            help="Draw the first of these episodes as a graph of its turns with their advantages: .png, .svg, .pdf."
        ),
    ] = None


@app.command(name="show")
@with_options(ShowOptions)
def show_recorded_episodes(run: RunPath, options: ShowOptions) -> None:
    """Show recorded dialogues: prompt, answer, action and reward of each turn. Read-only."""
    order = "played" if options.best is None else "best" if options.best else "worst"
    selection = DialogueSelection(
        options.step, options.role, options.unreadable, order, options.episodes, options.whole
    )
    if options.graph is not None:
        from marl.view.graph_picture import check_picture_suffix, draw_graph  # The import loads matplotlib.

        check_picture_suffix(options.graph)
        (episode, *_), advantages = select_episodes(run, selection)
        draw_graph(episode, options.graph, advantages, role_colours([run]))
        typer.echo(options.graph)
        return
    console = Console()
    if options.prompts:
        for line in prompt_version_lines(run, options.step, whole=options.whole):
            console.print(line, soft_wrap=True)
        return
    # Long lines are not wrapped, so that a text can be copied from the terminal unchanged.
    for line in dialogue_lines(run, selection):
        console.print(line, soft_wrap=True)
