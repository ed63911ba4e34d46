"""`marl export-data`: what a run recorded, as a data set for other libraries."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import RunPath, echo
from marl.export.chats import By, Format
from marl.export.selection import TurnSelection
from marl.scenario.load import ScenarioError

app = typer.Typer()
_STEPS = re.compile(r"(?P<first>\d+)?(?P<to>-)?(?P<last>\d+)?")


@dataclass(frozen=True)
class DataOptions:
    """Options of `marl export-data`."""

    out: Annotated[Path, typer.Option(help="The folder to make.")]
    format: Annotated[
        Format,
        typer.Option(help="Tables of all that was recorded, or rows that others train on.", show_default=False),
    ]
    role: Annotated[
        list[str] | None, typer.Option(help="Only this role; may be repeated. Default: parquet all, else who learns.")
    ] = None
    policy: Annotated[list[str] | None, typer.Option(help="Only turns of this policy; may be repeated.")] = None
    steps: Annotated[str | None, typer.Option(help="Only these recorded steps: 40, 10-40, 10- or -40.")] = None
    min_return: Annotated[float | None, typer.Option(help="Only turns of agents paid this much or more.")] = None
    min_advantage: Annotated[float | None, typer.Option(help="Only turns with this advantage or more.")] = None
    readable: Annotated[bool, typer.Option("--readable", help="Only turns in which a legal move was read.")] = False
    by: Annotated[By, typer.Option(help="trl-dpo: what makes one answer better than another.")] = "advantage"
    min_margin: Annotated[float, typer.Option(min=0, help="trl-dpo: least difference of a pair.")] = 0.0
    push: Annotated[
        str | None, typer.Option(help="Upload the folder to this data set of the hub: OWNER/NAME. Needs HF_TOKEN.")
    ] = None
    private: Annotated[bool, typer.Option("--private", help="With --push: a new repository is private.")] = False


@app.command(name="export-data")
@with_options(DataOptions)
def export_recorded(run: RunPath, options: DataOptions) -> None:
    """Write recorded episodes as a data set: Parquet, or rows for TRL, verl and OpenAI's fine-tuning."""
    from marl.export.chats import PairRule
    from marl.export.data_export import DataChoice, export_data
    from marl.export.upload import upload_to

    pairs = PairRule(options.by, options.min_margin)
    if options.format != "trl-dpo" and pairs != PairRule():
        raise ScenarioError(f"--by and --min-margin make pairs, and --format {options.format} has none; give trl-dpo")
    upload = upload_to(options.push, private=options.private, kind="dataset")
    report = export_data(run, options.out, DataChoice(options.format, _selection(options), pairs, options.push))
    for file, rows in report.rows.items():
        echo(f"{options.out / file}: {rows} rows")
    if report.without_answer:
        echo("note: no verifier read a right answer, so ground_truth is empty: give verl a reward function of your own")
    if upload is not None:
        echo(upload.send(options.out))
    if options.format != "openai":
        # A bare name such as "parquet" would be one of the library's own.
        place = options.out if options.out.is_absolute() else f"./{options.out}"
        echo(f"from datasets import load_dataset; load_dataset({json.dumps(str(place))})")


def _selection(options: DataOptions) -> TurnSelection:
    first, last = _range(options.steps)
    return TurnSelection(
        tuple(options.role or ()),
        tuple(options.policy or ()),
        first,
        last,
        options.min_return,
        options.min_advantage,
        options.readable,
    )


def _range(steps: str | None) -> tuple[int | None, int | None]:
    """Return the first and the last step; None: no bound.

    Raises:
        ScenarioError: if the text is no range.
    """
    if steps is None:
        return None, None
    match = _STEPS.fullmatch(steps)
    if not match or not (match["first"] or match["last"]):
        raise ScenarioError(f"--steps {steps}: no range of steps; choices: N, A-B, A- or -B")
    first, last = (int(each) if each else None for each in (match["first"], match["last"]))
    if not match["to"]:
        last = first
    if first is not None and last is not None and first > last:
        raise ScenarioError(f"--steps {steps}: the first step is after the last")
    return first, last
