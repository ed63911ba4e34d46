"""`marl export`: a trained policy as a folder that Transformers or PEFT loads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from marl.commands.options import with_options
from marl.commands.terminal import RunPath, echo
from marl.export.model_export import ModelExportOptions, export_model
from marl.export.saved_policy import find_saved_policy
from marl.export.upload import check_base_model_is_loadable_by_others, requested_upload
from marl.scenario.load import ScenarioError

app = typer.Typer()


@dataclass(frozen=True)
class ExportOptions:
    """Options of `marl export`."""

    out: Annotated[Path, typer.Option(help="The folder to create.")]
    merge: Annotated[
        bool | None,
        typer.Option(
            "--merge/--adapter",
            help="Merge an adapter into its base, or export the adapter alone. Default: as the run saved it.",
            show_default=False,
        ),
    ] = None
    step: Annotated[int | None, typer.Option(min=1, help="Step of the checkpoint; default: the newest.")] = None
    best: Annotated[bool, typer.Option("--best", help="The best checkpoint, by the scenario's evaluate.keep_best.")] = (
        False
    )
    role: Annotated[
        str | None,
        typer.Option(help="Role whose sampling becomes generation_config.json; default: the first one of the policy."),
    ] = None
    gguf: Annotated[bool, typer.Option("--gguf", help="Also write OUT/POLICY.gguf; Llama models only.")] = False
    push: Annotated[
        str | None, typer.Option(help="Upload the folder to this repository of the hub: OWNER/NAME. Needs HF_TOKEN.")
    ] = None
    private: Annotated[bool, typer.Option("--private", help="With --push: create the repository as private.")] = False


@app.command(name="export")
@with_options(ExportOptions)
def export_policy(
    run: RunPath,
    options: ExportOptions,
    policy: Annotated[str | None, typer.Argument(help="Policy to export; default: the only one that learns.")] = None,
) -> None:
    """Write a trained policy as a Hugging Face model or a PEFT adapter, with a model card."""
    if options.best and options.step is not None:
        raise ScenarioError(f"--step {options.step} names a checkpoint and --best another one: give one of them")
    source = find_saved_policy(run, policy, "best" if options.best else options.step or "latest")
    upload = requested_upload(options.push, private=options.private, kind="model")
    if upload is not None:
        # An adapter on a local base is useless to others, so its upload is refused before any file is written.
        check_base_model_is_loadable_by_others(upload.repository, source, options.merge)
    settings = ModelExportOptions(options.merge, options.role, options.gguf, options.push)
    written = export_model(source, options.out, settings)
    echo(f"{options.out}: policy {written.policy} of {run}, step {written.step}")
    if written.base is not None:
        location = " beside it" if Path(written.base).is_relative_to(options.out.absolute()) else ""
        echo(f"an adapter; its base is {written.base}{location}; --merge makes one model of both")
    if options.gguf:
        echo(f"{options.out / f'{written.policy}.gguf'}: the same model, for llama.cpp")
    if upload is not None:
        echo(upload.upload_to_hub(options.out))
    if written.loader:
        package = "transformers" if written.adapter is None else "peft"
        path = json.dumps(str(options.out))
        echo(f"from {package} import {written.loader}; {written.loader}.from_pretrained({path})")
    else:
        echo(f"path: {options.out} (for a scenario's model, beside the settings that it has in {run})")
