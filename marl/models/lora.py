"""PEFT adapters on models that share the tensors of one base."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from peft import LoraConfig, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from marl.models.fused_lora import FusedLora
from marl.models.hf_folder import ADAPTER_WEIGHTS
from marl.models.weights import copy_tensors, peft_weights

if TYPE_CHECKING:
    from marl.models.adapter import AdapterSource
    from marl.models.pretrained import PretrainedSource

_BASES: WeakValueDictionary[PretrainedSource, Any] = WeakValueDictionary()
"""Bases in memory. They never change, so that engines, learners and opponents in a process share them."""


def shared_base(source: PretrainedSource) -> Any:
    """Return the model, loaded once for all that hold it at the same time."""
    key = replace(source, policy="")
    model = _BASES.get(key)
    if model is None:
        model = _BASES[key] = source.model().requires_grad_(False)
    return model


def copy_modules(model: Any) -> Any:
    """Return a copy of the modules that holds the very tensors of `model`."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def with_adapter(source: AdapterSource) -> Any:
    """Return the source's base with its adapter, which alone wants gradients and is float32 whatever the base is.

    Raises:
        ValueError: if the base has no such layers, or the adapter's folder holds other tensors.
    """
    settings, model = source.adapter, copy_modules(source.base)
    targets = _targets(source, model)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # PEFT divides by the rank: any number will do
        lora_dropout=settings.dropout,
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    config._register_custom_module({nn.Linear: FusedLora})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model.add_adapter(config)
    # PEFT makes a set of them, which would be written in another order by every process.
    config.target_modules = targets
    for parameter in adapter_tensors(model).values():
        parameter.data = parameter.data.float()
    _reset_magnitudes(model)
    if settings.folder is not None:
        _load_folder(source, model, settings.folder)
    return model.eval()


def _load_folder(source: AdapterSource, model: Any, folder: Path) -> None:
    try:
        copy_tensors(adapter_tensors(model), peft_weights(folder), str(folder))
    except ValueError as error:
        raise source.fault(error) from error


def adapter_layers(model: Any) -> Iterator[tuple[str, LoraLayer]]:
    """Return the adapted layers with their paths in the base."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """Return the tensors that learn, by the names under which learners publish them."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def unadapted_base(model: Any) -> Any | None:
    """Return the base alone, a copy that holds the tensors of `model`; None if the adapter changes its output."""
    if not all(_is_idle(layer) for _, layer in adapter_layers(model)):
        return None
    base = copy_modules(model)
    for path, layer in list(adapter_layers(base)):
        base.set_submodule(path, layer.base_layer)
    return base


def save_adapter(model: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write a PEFT folder that holds the adapter alone; PEFT itself would add adapted embeddings of the base.

    `state` are the adapter's whole tensors, by the names of the model's `state_dict`, if the model has shards of them.
    """
    tensors = get_peft_model_state_dict(model, state, adapter_name="default", save_embedding_layers=False)
    folder.mkdir(parents=True, exist_ok=True)
    renamed = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(renamed, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(str(folder))


def row_norms(layer: nn.Module, change_OI: Tensor) -> Tensor:
    """Return the Euclidean norms `[O]` of the rows of the layer's weight after a change, as DoRA takes them."""
    weight: Any = layer.weight
    transposed = isinstance(layer, Conv1D | nn.Embedding)
    return torch.linalg.norm((weight.T if transposed else weight).to(change_OI.dtype) + change_OI, dim=1)


def matrices(layer: Any) -> dict[str, Tensor]:
    """Return an adapter's A `[r, I]`, B `[O, r]` and, of DoRA, magnitude `[O]`, by their names in the layer."""
    embeds = isinstance(layer.base_layer, nn.Embedding)
    names = [f"lora_embedding_{x}.default" if embeds else f"lora_{x}.default.weight" for x in "AB"]
    tensors: dict[str, Tensor] = {name: layer.get_parameter(name) for name in names}
    if "default" in layer.lora_magnitude_vector:
        tensors["lora_magnitude_vector.default.weight"] = layer.lora_magnitude_vector["default"].weight
    return tensors


@torch.no_grad()
def _reset_magnitudes(model: Any) -> None:
    """Set a DoRA's first magnitudes in float32; PEFT rounds them to the base's type, which changes the output."""
    for _, layer in adapter_layers(model):
        a_RI, _, *magnitudes = matrices(layer).values()
        for each_O in magnitudes:
            each_O.copy_(row_norms(layer.base_layer, a_RI.new_zeros(())))


@torch.no_grad()
def _is_idle(layer: Any) -> bool:
    """Return whether the adapter leaves the layer's output as it is."""
    a_RI, b_OR, *magnitudes = matrices(layer).values()
    if bool(a_RI.any() and b_OR.any()):
        return False
    return all(torch.allclose(each_O, row_norms(layer.base_layer, a_RI.new_zeros(()))) for each_O in magnitudes)


def _targets(source: AdapterSource, model: Any) -> list[str] | str:
    """Return the names or the pattern that PEFT adapts. `all-linear` leaves out the output's layer, which may be tied.

    Raises:
        ValueError: if a target is no layer, or one that cannot be adapted.
    """
    output, targets = model.get_output_embeddings(), source.adapter.targets
    able = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) or type(m) is nn.Embedding}
    linear = {n for n, m in able.items() if m is not output and not isinstance(m, nn.Embedding)}
    known = sorted({name.rpartition(".")[2] for name in linear})
    if targets == "all-linear":
        return known
    choices = f"choices: {', '.join(known)}, or all-linear; also the output's and the embeddings, paths, and patterns"
    for target in [targets] if isinstance(targets, str) else targets or [""]:
        # PEFT's own rule: a pattern for the whole path, or the end of it.
        pattern = target if isinstance(targets, str) else rf"(.*\.)?{re.escape(target)}"
        matches = [name for name, _ in model.named_modules() if name and re.fullmatch(pattern, name)]
        if not matches:
            raise source.fault(f"targets: no layer is called {target!r}; {choices}")
        if unable := sorted(set(matches) - able.keys()):
            raise source.fault(f"targets: {target!r} means {', '.join(unable[:3])}, which cannot be adapted; {choices}")
    return targets if isinstance(targets, str) else sorted(set(targets))
