"""Export of a policy: weights, generation settings, model card and, on request, a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marl.export.generation_config import select_generation_role, write_generation_config
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
    """Path or repository from which the model card's example code loads the policy (default: the folder's name)."""


def export_model(source: SavedPolicy, out_folder: Path, options: ModelExportOptions) -> SavedPolicy:
    """Export a policy to the folder `out_folder`, which appears complete or not at all; return the exported policy.

    Raises:
        ScenarioError: if `out_folder` exists or an option does not fit the policy.
        ValueError: if the adapter cannot be merged or GGUF does not support the model.
        RunFolderError: if `out_folder` cannot be written.
    """
    scenario = RunFolder(source.run).scenario()
    if options.merge is False and source.adapter is None:
        raise ScenarioError(f"--adapter: policy {source.policy!r} of {source.run} is a whole model, no adapter")
    role = select_generation_role(scenario, source.policy, options.role)
    if options.gguf:
        # A missing GGUF package is reported now and not after a copy of many gigabytes.
        from marl.models.gguf_writing import check_gguf_export_supported  # imported here, because it loads torch

        if source.adapter is not None and not options.merge:
            raise ScenarioError("--gguf: an adapter alone makes no GGUF file; give --merge, too")
        if source.loader != "AutoModelForCausalLM" and source.adapter is None:
            raise ScenarioError(f"--gguf: policy {source.policy!r} of {source.run} is no language model")
        check_gguf_export_supported(Path(str(source.base)) if source.adapter else source.folder)

    def write_gguf_configuration_and_model_card(saved_policy: SavedPolicy, folder: Path) -> None:
        language = saved_policy.loader == "AutoModelForCausalLM" or saved_policy.adapter is not None
        if language and role is not None:
            write_generation_config(folder, saved_policy.base, scenario.roles[role].sampling)
        if options.gguf:
            from marl.models.gguf_writing import write_gguf  # The import is here, because it loads torch.

            write_gguf(folder, folder / f"{source.policy}.gguf")
        load_path = options.load_path or out_folder.name
        write_model_card(ModelCardFacts(source, saved_policy, scenario, role if language else None, load_path), folder)

    return (merge_policy if options.merge else copy_policy)(source, out_folder, write_gguf_configuration_and_model_card)
