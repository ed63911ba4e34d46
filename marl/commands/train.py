"""`marl train` and `marl rerun`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import File, Overrides, echo, tell
from marl.scenario.load import load

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of `marl train`."""

    out: Annotated[Path | None, typer.Option(help="The run's folder; default runs/NAME.")] = None
    resume: Annotated[str | None, typer.Option(help="'auto', or a checkpoint's folder: go on from there.")] = None
    force: Annotated[bool, typer.Option(help="Go on although the scenario changed.")] = False
    overwrite: Annotated[bool, typer.Option(help="Remove the run that is in the folder.")] = False
    episodes: Annotated[bool, typer.Option(help="Show a sampled episode now and then, on a terminal.")] = True
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: HOST:PORT, or 'auto' for this machine's; as cluster.address.")
    ] = None


@app.command()
@with_options(TrainOptions)
def train(scenario: File, options: TrainOptions, overrides: Overrides = None) -> None:
    """Train the policies of a scenario that have a learner."""
    from marl.cluster.placement import placement_of
    from marl.training.interrupt import Interrupt
    from marl.training.session import Following, RunStart, session
    from marl.view.streams import lasting_output

    placed = [f"cluster.address={options.address}"] if options.address else []
    checked = load(scenario, [*placed, *(overrides or ())])
    start = RunStart(options.resume, force=options.force, overwrite=options.overwrite)
    with lasting_output():
        tell(checked)
        home, stop = options.out or Path("runs") / scenario.stem, Interrupt(exits=True)
        with placement_of(checked) as placement:
            finished = session(checked, home, start, Following(episodes=options.episodes), stop, placement)
    raise typer.Exit(0 if finished else 130)


@app.command()
def rerun(batch: Annotated[Path, typer.Argument(help="RUN/failed/STEP/POLICY", show_default=False)]) -> None:
    """Repeat an update that failed, from the batch and learner that were kept."""
    from marl.training.restore import rerun as again

    echo(json.dumps(again(batch), indent=1))
