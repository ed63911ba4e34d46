"""`marl export`: what a policy has learnt, as a folder that Transformers or PEFT loads."""

from __future__ import annotations

import json
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
    merge: Annotated[
        bool | None,
        typer.Option(
            "--merge/--adapter",
            help="Make one model of an adapter and its base, or export the adapter alone. Default: what the run saved.",
            show_default=False,
        ),
    ] = None
    step: Annotated[int | None, typer.Option(min=1, help="Which checkpoint; default: the newest.")] = None
    best: Annotated[bool, typer.Option("--best", help="The best one, by the scenario's evaluate.keep_best.")] = False
    role: Annotated[
        str | None,
        typer.Option(help="Whose sampling becomes generation_config.json; default: the first that the policy speaks."),
    ] = None
    gguf: Annotated[bool, typer.Option("--gguf", help="Write OUT/POLICY.gguf as well: Llama models.")] = False
    push: Annotated[
        str | None, typer.Option(help="Upload the folder to this repository of the hub: OWNER/NAME. Needs HF_TOKEN.")
    ] = None
    private: Annotated[bool, typer.Option("--private", help="With --push: a new repository is private.")] = False


@app.command(name="export")
@with_options(ExportOptions)
def export_policy(
    run: RunPath,
    options: ExportOptions,
    policy: Annotated[str | None, typer.Argument(help="Which; default: the only one that learns.")] = None,
) -> None:
    """Write what a policy has learnt as an ordinary folder with a card: a Hugging Face model, or a PEFT adapter."""
    from marl.export.model_export import ModelChoice, export_model
    from marl.export.upload import expect_base_at_hand, upload_to
    from marl.export.weights import learnt

    if options.best and options.step is not None:
        raise ScenarioError(f"--step {options.step} names a checkpoint and --best another one: give one of them")
    source = learnt(run, policy, "best" if options.best else options.step or "latest")
    upload = upload_to(options.push, private=options.private, kind="model")
    if upload is not None:
        expect_base_at_hand(upload.repository, source, options.merge)
    choice = ModelChoice(options.merge, options.role, options.gguf, options.push)
    written = export_model(source, options.out, choice)
    echo(f"{options.out}: policy {written.policy} of {run}, step {written.step}")
    if written.base is not None:
        away = " beside it" if Path(written.base).is_relative_to(options.out.absolute()) else ""
        echo(f"an adapter; its base is {written.base}{away}; --merge makes one model of both")
    if options.gguf:
        echo(f"{options.out / f'{written.policy}.gguf'}: the same model, for llama.cpp")
    if upload is not None:
        echo(upload.send(options.out))
    _tell_loader(written.loader, options.out, run, adapter=written.adapter is not None)


def _tell_loader(loader: str, out: Path, run: Path, *, adapter: bool) -> None:
    if not loader:
        echo(f"path: {out} (for a scenario's model, beside the settings that it has in {run})")
        return
    package = "peft" if adapter else "transformers"
    echo(f"from {package} import {loader}; {loader}.from_pretrained({json.dumps(str(out))})")
