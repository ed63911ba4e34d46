"""Models that share the tensors of one base, and the PEFT adapters on them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from marl.engines.weights import copy_tensors, peft_weights

if TYPE_CHECKING:
    from marl.engines.adapter import Adapted
    from marl.engines.models import Checkpoint

_HELD: WeakValueDictionary[Checkpoint, Any] = WeakValueDictionary()
"""Bases in memory. What never changes can be shared by everything in a process: engines, learners, opponents."""


def shared_base(checkpoint: Checkpoint) -> Any:
    """The model, loaded once for all who hold it at the same time."""
    key = replace(checkpoint, policy="")
    model = _HELD.get(key)
    if model is None:
        model = _HELD[key] = checkpoint.model().requires_grad_(False)
    return model


def same_tensors(model: Any) -> Any:
    """Modules of their own that hold the tensors of `model`."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def with_adapter(source: Adapted) -> Any:
    """The source's base with its adapter, which alone wants gradients and is float32 whatever the base is.

    Raises:
        ValueError: if the base has no such layers, or the adapter's folder holds other tensors.
    """
    settings, model = source.settings, same_tensors(source.base)
    targets = _targets(source, model)
    plan = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # PEFT divides by the rank: any number will do
        lora_dropout=settings.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model.add_adapter(plan)
    # PEFT makes a set of them, which would be written in another order by every process.
    plan.target_modules = targets
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data = parameter.data.float()
    if settings.path is not None:
        _load(source, model, Path(settings.path).expanduser())
    return model.eval()


def adapter_layers(model: Any) -> Iterator[tuple[str, LoraLayer]]:
    """Each adapted layer by its place in the base."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """What learns, under the names by which learners publish it."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _targets(source: Adapted, model: Any) -> list[str]:
    """Last names of layers. The output's, which may be tied to the embeddings, is left as it is."""
    output = model.get_output_embeddings()
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and m is not output}
    known = sorted({name.rpartition(".")[2] for name in linear})
    if source.settings.targets == "all-linear":
        return known
    unknown = sorted(set(source.settings.targets) - set(known))
    if unknown or not source.settings.targets:
        what = f"no linear layer within the model is called {', '.join(unknown)}" if unknown else "names no layer"
        raise source.fault(f"targets: {what}; choices: {', '.join(known)}, or all-linear")
    return sorted(set(source.settings.targets))


def _load(source: Adapted, model: Any, folder: Path) -> None:
    try:
        copy_tensors(adapter_tensors(model), peft_weights(folder), str(folder))
    except ValueError as error:
        raise source.fault(error) from error
