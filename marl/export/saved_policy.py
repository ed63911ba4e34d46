"""Copying or merging a policy's saved weights into a folder for Transformers or PEFT."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from marl.core.config import choices_hint
from marl.export.atomic_folder import atomic_folder
from marl.host.paths import cache_folder
from marl.models.adapter import Adapter, AdapterSource
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.models.pretrained import TransformersModelConfig
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.checkpoint import verify_checksums
from marl.runs.locks import checkpoint_lock
from marl.runs.run_folder import RunFolder
from marl.runs.trained_model import Trained
from marl.scenario.load import ScenarioError


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """Trained weights of a policy, in a checkpoint or in an exported folder."""

    run: Path
    policy: str
    step: int
    """Step of the checkpoint from which the weights come."""
    folder: Path
    """Folder with the weights, in the format of Hugging Face or PEFT."""
    loader: str
    """Class of Transformers or PEFT that loads the folder, or "" for a model that is no language model."""
    adapter: Adapter | None
    """Settings of the adapter, or None for a full model."""
    base: str | None = None
    """Folder or hub name of the adapter's base model, or None for a full model."""


def find_saved_policy(run: Path, policy: str | None, step: int | Literal["latest", "best"] = "latest") -> SavedPolicy:
    """Return the saved weights of `policy` (default: the only trained policy) at a checkpoint.

    Raises:
        ScenarioError: if the run or the policy does not exist.
        ValueError: if the checkpoint does not exist.
        CheckpointError: if the checkpoint is damaged.
    """
    policies = RunFolder(run).scenario().policies
    trained_policies = {name: settings for name, settings in policies.items() if settings.learner}
    if policy is None and len(trained_policies) > 1:
        raise ScenarioError(f"{run} trains several policies, so say which; choices: {', '.join(trained_policies)}")
    name = next(iter(trained_policies), "") if policy is None else policy
    if name not in trained_policies:
        stays = " (it has no learner, and stays as it is)" if name in policies else ""
        raise ScenarioError(f"{run} trains no policy {name!r}{stays}; {choices_hint(name, trained_policies)}")
    settings = trained_policies[name]
    publishes = settings.learner is not None and settings.learner.publishes
    model = settings.model.base if isinstance(settings.model, Adapter) else settings.model
    dtype = model.dtype if isinstance(model, TransformersModelConfig) else "float32"
    trained = Trained(run=str(run), policy=name, step=step, dtype=dtype)
    folder = trained.folder(is_language_model=publishes)
    manifest = verify_checksums(folder.parents[1], f"policies/{name}/")
    adapter = trained.with_saved_weights(folder) if publishes else None
    if isinstance(adapter, Adapter):
        if problems := [*adapter.unmet_requirements()]:
            raise ValueError(f"policy {name!r} of {run}: {'; '.join(problems)}")
        base = str(json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"])
        return SavedPolicy(run, name, manifest.step, folder, "AutoPeftModelForCausalLM", adapter, base)
    loader = "AutoModelForCausalLM" if publishes else "AutoModelForSequenceClassification"
    language = settings.model is None or settings.model.family == LANGUAGE_MODEL
    return SavedPolicy(run, name, manifest.step, folder, loader if language else "", None)


ExtraFilesWriter = Callable[[SavedPolicy, Path], None]
"""Callback that adds files to an export. It receives the exported `SavedPolicy` and the temporary folder."""


def copy_policy(
    source: SavedPolicy, out_folder: Path, write_extra_files: ExtraFilesWriter | None = None
) -> SavedPolicy:
    """Copy a saved policy to `out_folder`, which appears complete or not at all, and return the copy.

    A base model in marl's own cache is copied, because other machines lack the cache. `write_extra_files` adds files.

    Raises:
        ScenarioError: if `out_folder` exists or lies inside the copied folder.
        RunFolderError: if `out_folder` cannot be written.
    """
    if out_folder.resolve().is_relative_to(source.folder.resolve()):
        raise ScenarioError(f"{out_folder} lies in the checkpoint that it would hold; choose a folder outside the run")
    base = source.base
    if base is not None and Path(base).is_relative_to(cache_folder().absolute()):
        base = str(out_folder.absolute() / "base")
    copied = replace(source, folder=out_folder, base=base)
    # The lock keeps the run from deleting the checkpoint during the copy.
    with checkpoint_lock(source.folder.parents[1]), atomic_folder(out_folder) as folder:
        shutil.copytree(source.folder, folder)
        if base is not None and base != source.base:
            shutil.copytree(str(source.base), folder / "base")
            config = folder / ADAPTER_CONFIG
            settings = json.loads(config.read_text()) | {"base_model_name_or_path": base}
            config.write_text(json.dumps(settings, indent=2))
        if write_extra_files is not None:
            write_extra_files(copied, folder)
    return copied


def merge_policy(
    source: SavedPolicy, out_folder: Path, write_extra_files: ExtraFilesWriter | None = None
) -> SavedPolicy:
    """Merge an adapter into its base model, write it to `out_folder`, and return it. `write_extra_files` adds files.

    Raises:
        ScenarioError: if `out_folder` exists or the policy is not an adapter.
        ValueError: if the adapter cannot be merged.
        RunFolderError: if `out_folder` cannot be written.
    """
    if source.adapter is None or source.base is None:
        raise ScenarioError(f"policy {source.policy!r} of {source.run} is a whole model: there is nothing to merge")
    merged = replace(source, folder=out_folder, loader="AutoModelForCausalLM", adapter=None, base=None)
    with atomic_folder(out_folder) as folder:
        from marl.models.adapter_merging import merge_adapter  # The import is here, because it loads torch.

        adapter = source.adapter
        adapter_source = AdapterSource(source.policy, adapter, adapter.base.source(source.policy, source.base))
        merge_adapter(adapter_source).save_pretrained(folder)
        adapter_source.tokenizer().save_pretrained(folder)
        if write_extra_files is not None:
            write_extra_files(merged, folder)
    return merged
