"""`marl export`: what a policy has learnt, as a folder that Transformers or PEFT loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import RunPath, echo
from marl.scenario.load import ScenarioError

app = typer.Typer()


@dataclass(frozen=True)
class ExportOptions:
    """Options of `marl export`."""

    out: Annotated[Path, typer.Option(help="The folder to make.")]
    merge: Annotated[bool, typer.Option("--merge", help="Make one model of an adapter and its base.")] = False
    step: Annotated[int | None, typer.Option(min=1, help="Which checkpoint; default: the newest.")] = None
    best: Annotated[bool, typer.Option("--best", help="The best one, by the scenario's evaluate.keep_best.")] = False


@app.command(name="export")
@with_options(ExportOptions)
def export_policy(
    run: RunPath,
    options: ExportOptions,
    policy: Annotated[str | None, typer.Argument(help="Which; default: the only one that learns.")] = None,
) -> None:
    """Write what a policy has learnt as an ordinary folder: a Hugging Face model, or a PEFT adapter."""
    from marl.export.weights import copy_out, learnt, merge_out

    if options.best and options.step is not None:
        raise ScenarioError(f"--step {options.step} names a checkpoint and --best another one: give one of them")
    source = learnt(run, policy, "best" if options.best else options.step or "latest")
    written = (merge_out if options.merge else copy_out)(source, options.out)
    echo(f"{options.out}: policy {written.policy} of {run}, step {written.step}")
    if written.base is not None:
        away = " beside it" if Path(written.base).is_relative_to(options.out.absolute()) else ""
        echo(f"an adapter; its base is {written.base}{away}; --merge makes one model of both")
    if not written.loader:
        echo(f"path: {options.out} (for a scenario's model, beside the settings that it has in {run})")
        return
    package = "peft" if written.adapter else "transformers"
    echo(f'from {package} import {written.loader}; {written.loader}.from_pretrained("{options.out}")')
