"""`marl export`: a trained policy as a folder that Transformers or PEFT loads."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from marl.commands.options import with_options
from marl.commands.terminal import RunPath, echo
from marl.core.config import choices_hint
from marl.export.atomic_folder import atomic_folder
from marl.export.model_export import ModelExportOptions, export_model
from marl.export.saved_policy import find_saved_policy
from marl.export.upload import check_base_model_is_loadable_by_others, requested_upload
from marl.runs.populations import is_population, read_population
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
    """Write a trained policy as a Hugging Face model or a PEFT adapter, with a model card.

    RUN@pool and RUN@meta write the members of a league, a folder each, and population.json with their weights.
    """
    if is_population(str(run)):
        _export_population(str(run), options, policy)
        return
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


def _export_population(player_spec: str, options: ExportOptions, policy: str | None) -> None:
    """Copy the members of `RUN@pool` or `RUN@meta`, those of `policy` alone if it is given, and write a manifest.

    Raises:
        ScenarioError: if an option does not apply, or no member has `policy`.
    """
    given, defaults = asdict(options), asdict(ExportOptions(options.out))
    for name, default in defaults.items():
        if given[name] != default:
            raise ScenarioError(f"--{name}: {player_spec} is exported as its members were saved; leave it out")
    members = [member for member in read_population(player_spec) if policy in (None, member.policy)]
    if not members:
        choices = {member.policy for member in read_population(player_spec)}
        raise ScenarioError(f"{player_spec}: no member with policy {policy!r}; {choices_hint(policy or '', choices)}")
    total = sum(member.weight for member in members)
    rows: list[dict[str, Any]] = []
    with atomic_folder(options.out) as folder:
        for member in members:
            name = f"{member.policy}-{member.version:06d}"
            # Members of a one-model population share a folder.
            shutil.copytree(member.folder, folder / name, dirs_exist_ok=True)
            row = {"folder": name, "policy": member.policy, "step": member.version, "weight": member.weight / total}
            rows.append(row | ({"role": member.role} if member.role else {}))
        (folder / "population.json").write_text(json.dumps({"population": player_spec, "members": rows}, indent=1))
    echo(f"{options.out}: {len(rows)} members of {player_spec}, weights in population.json")
