"""`marl train` and `marl rerun`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.cluster.placement import open_placement
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, ScenarioFile, echo, print_notes
from marl.scenario.load import load
from marl.training.restore import rerun_failed_update
from marl.training.session import ProgressOptions, RunStart, train_with_monitors
from marl.training.stop_request import StopRequest
from marl.view.resilient_output import resilient_output

app = typer.Typer()
_INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as shells define it."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of `marl train`."""

    out: Annotated[Path | None, typer.Option(help="The run's folder; default: runs/NAME.")] = None
    resume: Annotated[str | None, typer.Option(help="'auto', or the folder of a checkpoint to continue from.")] = None
    force: Annotated[bool, typer.Option(help="Continue although the scenario changed.")] = False
    overwrite: Annotated[bool, typer.Option(help="Remove the run in the folder first.")] = False
    episodes: Annotated[bool, typer.Option(help="Show a sampled episode now and then, on a terminal.")] = True
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: HOST:PORT, or 'auto' for this machine's; as cluster.address.")
    ] = None


@app.command()
@with_options(TrainOptions)
def train(scenario: ScenarioFile, options: TrainOptions, overrides: Overrides = None) -> None:
    """Train the policies of a scenario that have a learner."""
    address = [f"cluster.address={options.address}"] if options.address else []
    checked = load(scenario, [*address, *(overrides or ())])
    start = RunStart(options.resume, force=options.force, overwrite=options.overwrite)
    # `exits`: a call that Python cannot interrupt must not keep the process alive after a request to stop.
    folder, stop = options.out or Path("runs") / scenario.stem, StopRequest(exits=True)
    with resilient_output():
        print_notes(checked)
        with open_placement(checked) as placement:
            progress = ProgressOptions(episodes=options.episodes)
            finished = train_with_monitors(checked, folder, start, progress, stop, placement)
    raise typer.Exit(0 if finished else _INTERRUPTED)


@app.command()
def rerun(batch: Annotated[Path, typer.Argument(help="RUN/failed/STEP/POLICY", show_default=False)]) -> None:
    """Repeat a failed update from its recorded batch and learner."""
    echo(json.dumps(rerun_failed_update(batch), indent=1))
