"""`marl export-data`: recorded episodes of a run as a data set for other libraries."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import RunPath, echo
from marl.export.chat_rows import DataFormat, PairCriterion, PreferencePairRule
from marl.export.data_export import DataExportOptions, export_data
from marl.export.turn_selection import TurnSelection
from marl.export.upload import requested_upload
from marl.scenario.load import ScenarioError

app = typer.Typer()
_STEPS = re.compile(r"(?P<first>\d+)?(?P<to>-)?(?P<last>\d+)?")


@dataclass(frozen=True)
class ExportDataOptions:
    """Options of `marl export-data`."""

    out: Annotated[Path, typer.Option(help="The folder to create.")]
    format: Annotated[
        DataFormat,
        typer.Option(help="Tables of all recorded data, or training rows of another library.", show_default=False),
    ]
    role: Annotated[
        list[str] | None, typer.Option(help="Only this role; repeat it. Default: all for parquet, else learning roles.")
    ] = None
    policy: Annotated[list[str] | None, typer.Option(help="Only turns of this policy; repeat it.")] = None
    steps: Annotated[str | None, typer.Option(help="Only these recorded steps: 40, 10-40, 10- or -40.")] = None
    min_return: Annotated[float | None, typer.Option(help="Only turns of agents with this return or more.")] = None
    min_advantage: Annotated[float | None, typer.Option(help="Only turns with this advantage or more.")] = None
    readable: Annotated[bool, typer.Option("--readable", help="Only turns with a legal move.")] = False
    by: Annotated[PairCriterion, typer.Option(help="trl-dpo: criterion that orders two answers.")] = "advantage"
    min_margin: Annotated[float, typer.Option(min=0, help="trl-dpo: minimum difference of a pair.")] = 0.0
    push: Annotated[
        str | None, typer.Option(help="Upload the folder to this data set of the hub: OWNER/NAME. Needs HF_TOKEN.")
    ] = None
    private: Annotated[bool, typer.Option("--private", help="With --push: create the repository as private.")] = False


@app.command(name="export-data")
@with_options(ExportDataOptions)
def export_recorded(run: RunPath, options: ExportDataOptions) -> None:
    """Write recorded episodes as a data set: Parquet, or rows for TRL, verl and OpenAI's fine-tuning."""
    pairs = PreferencePairRule(options.by, options.min_margin)
    if options.format != "trl-dpo" and pairs != PreferencePairRule():
        raise ScenarioError(f"--by and --min-margin make pairs, and --format {options.format} has none; give trl-dpo")
    upload = requested_upload(options.push, private=options.private, kind="dataset")
    first, last = _parse_step_range(options.steps)
    roles, policies = tuple(options.role or ()), tuple(options.policy or ())
    minima = options.min_return, options.min_advantage
    selection = TurnSelection(roles, policies, first, last, *minima, options.readable)
    report = export_data(run, options.out, DataExportOptions(options.format, selection, pairs, options.push))
    for file, rows in report.rows.items():
        echo(f"{options.out / file}: {rows} rows")
    if report.without_answer:
        echo("note: no verifier read a right answer, so ground_truth is empty: give verl a reward function of your own")
    if upload is not None:
        echo(upload.upload_to_hub(options.out))
    if options.format != "openai":
        # `load_dataset` takes a bare folder name such as "parquet" for one of its own builders, but not "./parquet".
        path = options.out if options.out.is_absolute() else f"./{options.out}"
        echo(f"from datasets import load_dataset; load_dataset({json.dumps(str(path))})")


def _parse_step_range(steps: str | None) -> tuple[int | None, int | None]:
    """Return the first and the last step of a range such as `10-40`. A missing bound is None.

    Raises:
        ScenarioError: if `steps` is no range.
    """
    if steps is None:
        return None, None
    match = _STEPS.fullmatch(steps)
    if not match or not (match["first"] or match["last"]):
        raise ScenarioError(f"--steps {steps}: no range of steps; choices: N, A-B, A- or -B")
    first = int(match["first"]) if match["first"] else None
    last = int(match["last"]) if match["last"] else None
    if not match["to"]:
        last = first
    if first is not None and last is not None and first > last:
        raise ScenarioError(f"--steps {steps}: the first step is after the last")
    return first, last
