"""`marl train` and `marl rerun`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.cluster.placement import open_placement
from marl.commands.options import with_options
from marl.commands.terminal import Overrides, ScenarioFile, echo
from marl.evaluation.dry_run import play_dry_run
from marl.evaluation.dry_run_findings import scenario_errors
from marl.scenario.credit_checks import credit_notes
from marl.scenario.load import format_problem_list, load
from marl.scenario.schema import Scenario
from marl.scenario.yaml_text import ScenarioError
from marl.training.restore import rerun_failed_update
from marl.training.session import NewOrResumedRunStart, ProgressOptions, train_with_monitors
from marl.training.stop_request import StopRequest
from marl.view.resilient_output import tolerate_broken_output

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
    allow: Annotated[
        bool, typer.Option("--allow", help="Train although random play shows that the scenario cannot learn.")
    ] = False
    episodes: Annotated[bool, typer.Option(help="Show a sampled episode now and then, on a terminal.")] = True
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: HOST:PORT, or 'auto' for this machine's; as cluster.address.")
    ] = None


@app.command()
@with_options(TrainOptions)
def train(scenario: ScenarioFile, options: TrainOptions, overrides: Overrides = None) -> None:
    """Train the policies of a scenario that have a learner.

    With --resume auto, a run's folder may stand for its scenario: marl train RUN --resume auto.
    """
    address = [f"cluster.address={options.address}"] if options.address else []
    is_run = (scenario / "scenario.yaml").is_file()
    checked = load(scenario / "scenario.yaml" if is_run else scenario, [*address, *(overrides or ())])
    if options.resume is None and not options.allow:
        _require_trainable_scenario(scenario, checked)
    start = NewOrResumedRunStart(options.resume, force=options.force, overwrite=options.overwrite)
    # `exits`: after a stop request, the process ends even if it is stuck in a call that Python cannot interrupt.
    folder, stop = options.out or (scenario if is_run else Path("runs") / scenario.stem), StopRequest(exits=True)
    with tolerate_broken_output():
        for note in credit_notes(checked):
            echo(f"note: {note}")
        with open_placement(checked) as placement:
            progress = ProgressOptions(episodes=options.episodes)
            finished = train_with_monitors(checked, folder, start, progress, stop, placement)
    raise typer.Exit(0 if finished else _INTERRUPTED)


def _require_trainable_scenario(file: Path, scenario: Scenario) -> None:
    """Check a scenario by a few random episodes before weights are loaded, as `marl check` does.

    Raises:
        ScenarioError: if a fault of the scenario would end the run or prevent learning.
    """
    try:
        problems = list(scenario_errors(play_dry_run(scenario)))
    except ValueError as error:
        if scenario.schedule.on_error == "drop":
            return  # `on_error: drop` drops failed episodes, so one of random play does not matter
        raise ScenarioError(f"{file}: {error}") from error
    if problems:
        remedy = "marl check says more; --allow trains all the same"
        raise ScenarioError(f"{file}: found in random play ({remedy}):\n{format_problem_list(problems)}")


@app.command(name="rerun")
def rerun_failed_batch(
    batch: Annotated[Path, typer.Argument(help="RUN/failed/STEP/POLICY", show_default=False)],
) -> None:
    """Repeat a failed update from its recorded batch and learner."""
    echo(json.dumps(rerun_failed_update(batch), indent=1))
