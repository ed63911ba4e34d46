"""Export of a policy: weights, generation settings, model card and, on request, a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marl.export.generation_config import generation_role, write_generation_config
from marl.export.model_card import ModelCardFacts, write_model_card
from marl.export.saved_policy import SavedPolicy, copy_policy, merge_policy
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError


@dataclass(frozen=True, slots=True)
class ModelExportOptions:
    """Options of a policy's export."""

    merge: bool | None = None
    """True merges an adapter into its base model, False exports the adapter alone, None keeps the saved form."""
    role: str | None = None
    """Role whose sampling settings become the generation settings (default: the policy's first role)."""
    gguf: bool = False
    """True also writes the model as a GGUF file."""
    load_path: str | None = None
    """Name under which the card loads the policy (default: the folder's name)."""


def export_model(source: SavedPolicy, out: Path, choice: ModelExportOptions) -> SavedPolicy:
    """Export a policy to the folder `out`, which appears complete or not at all; return the exported policy.

    Raises:
        ScenarioError: if `out` exists or an option does not fit the policy.
        ValueError: if the adapter cannot be merged or GGUF does not support the model.
        FolderError: if `out` cannot be written.
    """
    scenario = RunFolder(source.run).scenario()
    if choice.merge is False and source.adapter is None:
        raise ScenarioError(f"--adapter: policy {source.policy!r} of {source.run} is a whole model, no adapter")
    role = generation_role(scenario, source.policy, choice.role)
    if choice.gguf:
        # Checked before anything is written: conversion comes after a copy of many gigabytes.
        from marl.models.gguf_writing import expect_supported  # loads torch

        if source.adapter is not None and not choice.merge:
            raise ScenarioError("--gguf: an adapter alone makes no GGUF file; give --merge, too")
        if source.loader != "AutoModelForCausalLM" and source.adapter is None:
            raise ScenarioError(f"--gguf: policy {source.policy!r} of {source.run} is no language model")
        expect_supported(Path(str(source.base)) if source.adapter else source.folder)

    def complete(written: SavedPolicy, folder: Path) -> None:
        language = written.loader == "AutoModelForCausalLM" or written.adapter is not None
        if language and role is not None:
            write_generation_config(folder, written.base, scenario.roles[role].sampling)
        if choice.gguf:
            from marl.models.gguf_writing import write_gguf  # loads torch

            write_gguf(folder, folder / f"{source.policy}.gguf")
        load_path = choice.load_path or out.name
        write_model_card(ModelCardFacts(source, written, scenario, role if language else None, load_path), folder)

    return (merge_policy if choice.merge else copy_policy)(source, out, complete)
