"""Export of what a policy has learnt in a run: a folder that Transformers or PEFT loads wherever it is called."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from marl.config import nearest
from marl.export.folders import write_folder
from marl.models.adapter import Adapter, AdapterSource
from marl.models.hf_folder import ADAPTER_CONFIG
from marl.models.pretrained import HeldModel
from marl.places import cache_folder
from marl.protocols.models import LANGUAGE_MODEL
from marl.runs.checkpoint import verify
from marl.runs.leases import leased
from marl.runs.run_folder import RunFolder
from marl.runs.trained_model import Trained
from marl.scenario.load import ScenarioError
from marl.scenario.schema import PolicyConfig, Scenario


@dataclass(frozen=True, slots=True)
class Learnt:
    """Weights that a policy had learned at a checkpoint, or a copy of them."""

    run: Path
    policy: str
    step: int
    folder: Path
    """Of the checkpoint: one of Hugging Face, or of PEFT."""
    loader: str
    """Class whose `from_pretrained` loads it; empty if it is no language model."""
    adapter: Adapter | None
    """Settings, if it is an adapter."""
    base: str | None = None
    """Model that the adapter needs: a folder, or a name on the hub."""


def learnt(run: Path, policy: str | None, step: int | Literal["latest", "best"] = "latest") -> Learnt:
    """Return what a policy, by default the only one that learns, had learnt at a checkpoint.

    Raises:
        ScenarioError: if there is no such run or policy.
        ValueError: if there is no such checkpoint.
        CheckpointError: if it is damaged.
    """
    name, settings = _learning_policy(RunFolder(run).scenario(), run, policy)
    publishes = settings.learner is not None and settings.learner.publishes
    model = settings.model.base if isinstance(settings.model, Adapter) else settings.model
    dtype = model.dtype if isinstance(model, HeldModel) else "float32"
    trained = Trained(run=str(run), policy=name, step=step, dtype=dtype)
    folder = trained.folder(publishes=publishes)
    manifest = verify(folder.parents[1], f"policies/{name}/")
    adapter = trained.saved(folder) if publishes else None
    if isinstance(adapter, Adapter):
        if problems := [*adapter.missing()]:
            raise ValueError(f"policy {name!r} of {run}: {'; '.join(problems)}")
        base = str(json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"])
        return Learnt(run, name, manifest.step, folder, "AutoPeftModelForCausalLM", adapter, base)
    loader = "AutoModelForCausalLM" if publishes else "AutoModelForSequenceClassification"
    language = settings.model is None or settings.model.family == LANGUAGE_MODEL
    return Learnt(run, name, manifest.step, folder, loader if language else "", None)


def _learning_policy(scenario: Scenario, run: Path, policy: str | None) -> tuple[str, PolicyConfig]:
    learning = {name: each for name, each in scenario.policies.items() if each.learner}
    if policy is None and len(learning) > 1:
        raise ScenarioError(f"{run} trains several policies, so say which; choices: {', '.join(learning)}")
    name = next(iter(learning), "") if policy is None else policy
    if name not in learning:
        stays = " (it has no learner, and stays as it is)" if name in scenario.policies else ""
        raise ScenarioError(f"{run} trains no policy {name!r}{stays}; {nearest(name, learning)}")
    return name, learning[name]


Complete = Callable[[Learnt, Path], None]
"""Add to the folder that is being written; `Learnt` says what it will be, and where."""


def copy_out(source: Learnt, out: Path, complete: Complete | None = None) -> Learnt:
    """Copy it to `out`, whole or not at all; return what is there. A base that is only cached comes along.

    Raises:
        ScenarioError: if `out` exists, or lies in the folder that is copied.
        FolderError: if it cannot be written.
    """
    if out.resolve().is_relative_to(source.folder.resolve()):
        raise ScenarioError(f"{out} lies in the checkpoint that it would hold; choose a folder outside the run")
    base = source.base
    if base is not None and Path(base).is_relative_to(cache_folder().absolute()):
        base = str(out.absolute() / "base")
    copied = replace(source, folder=out, base=base)
    with leased(source.folder.parents[1]):
        write_folder(out, partial(_completed, partial(_copy, source, base), copied, complete))
    return copied


def merge_out(source: Learnt, out: Path, complete: Complete | None = None) -> Learnt:
    """Write the adapter's base with the adapter merged into it to `out`; return what is there.

    Raises:
        ScenarioError: if `out` exists, or it is no adapter.
        ValueError: if the adapter cannot be merged.
        FolderError: if it cannot be written.
    """
    if source.adapter is None or source.base is None:
        raise ScenarioError(f"policy {source.policy!r} of {source.run} is a whole model: there is nothing to merge")
    made = replace(source, folder=out, loader="AutoModelForCausalLM", adapter=None, base=None)
    merge = partial(_merge, source.policy, source.adapter, source.base)
    write_folder(out, partial(_completed, merge, made, complete))
    return made


def _completed(write: Callable[[Path], None], written: Learnt, complete: Complete | None, folder: Path) -> None:
    write(folder)
    if complete is not None:
        complete(written, folder)


def _copy(source: Learnt, base: str | None, folder: Path) -> None:
    shutil.copytree(source.folder, folder)
    if base is not None and base != source.base:
        shutil.copytree(str(source.base), folder / "base")
        file = folder / ADAPTER_CONFIG
        file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}, indent=2))


def _merge(policy: str, adapter: Adapter, base: str, folder: Path) -> None:
    from marl.models.merging import merged

    source = AdapterSource(policy, adapter, adapter.base.source(policy, base))
    merged(source).save_pretrained(folder)
    source.tokenizer().save_pretrained(folder)
