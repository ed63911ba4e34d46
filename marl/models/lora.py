"""PEFT adapters on models that share the tensors of one base model."""

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
from marl.models.pretrained import PretrainedSource
from marl.models.weights import copy_tensors, peft_weights

if TYPE_CHECKING:
    from marl.models.adapter import AdapterSource  # which imports this module to build a model

_BASES: WeakValueDictionary[PretrainedSource, Any] = WeakValueDictionary()
"""Base models in memory by source. They never change, so that all users in a process can share them."""


def shared_base(source: PretrainedSource) -> Any:
    """Return the frozen base model of `source`, loaded once as long as anything in the process uses it."""
    key = replace(source, policy="")  # the policy is there for error messages alone
    model = _BASES.get(key)
    if model is None:
        model = _BASES[key] = source.model().requires_grad_(False)
    return model


def copy_sharing_tensors(model: Any) -> Any:
    """Return a copy of the modules of `model` that shares its tensors."""
    # Tensors in the memo count as copied already.
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)


def with_adapter(source: AdapterSource) -> Any:
    """Return the base of `source` with its adapter. Only the adapter is trainable, in float32 on a base of any dtype.

    Raises:
        ValueError: if the base lacks a target layer, or if the tensors in the adapter's folder do not fit.
    """
    settings, model = source.adapter, copy_sharing_tensors(source.base)
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
    # PEFT turns the list into a set, and each process would save the set in another order.
    config.target_modules = targets
    for parameter in adapter_tensors(model).values():
        parameter.data = parameter.data.float()
    with torch.no_grad():
        for _, layer in adapter_layers(model):
            a_RI, _, *magnitudes = adapter_matrices(layer).values()
            for magnitude_O in magnitudes:
                # PEFT rounds DoRA's initial magnitudes to the base's dtype, which changes the output.
                magnitude_O.copy_(dora_row_norms(layer.base_layer, a_RI.new_zeros(())))
    if settings.folder is not None:
        try:
            copy_tensors(adapter_tensors(model), peft_weights(settings.folder), str(settings.folder))
        except ValueError as error:
            raise source.error(error) from error
    return model.eval()


def adapter_layers(model: Any) -> Iterator[tuple[str, LoraLayer]]:
    """Return the adapted layers of `model` with their module paths."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """Return the trainable tensors of `model` by name, as learners publish them."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def unadapted_base(model: Any) -> Any | None:
    """Return a copy of `model` without its adapter, sharing tensors, or None if the adapter changes the output."""
    with torch.no_grad():
        for _, layer in adapter_layers(model):
            a_RI, b_OR, *magnitudes = adapter_matrices(layer).values()
            if bool(a_RI.any() and b_OR.any()):
                return None
            for magnitude_O in magnitudes:
                if not torch.allclose(magnitude_O, dora_row_norms(layer.base_layer, a_RI.new_zeros(()))):
                    return None
    base = copy_sharing_tensors(model)
    for path, layer in list(adapter_layers(base)):
        base.set_submodule(path, layer.base_layer)
    return base


def save_adapter(model: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write the adapter of `model` to a PEFT folder.

    `state` holds the adapter's full tensors by their names in the model's `state_dict`, if the weights are sharded.
    """
    # By default PEFT would also save adapted embeddings of the base.
    tensors = get_peft_model_state_dict(model, state, adapter_name="default", save_embedding_layers=False)
    folder.mkdir(parents=True, exist_ok=True)
    renamed = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(renamed, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(str(folder))


def dora_row_norms(layer: nn.Module, change_OI: Tensor) -> Tensor:
    """Return DoRA's Euclidean norms `[O]` of the rows of the layer's weight plus `change_OI`."""
    weight: Any = layer.weight
    transposed = isinstance(layer, Conv1D | nn.Embedding)
    return torch.linalg.norm((weight.T if transposed else weight).to(change_OI.dtype) + change_OI, dim=1)


def adapter_matrices(layer: Any) -> dict[str, Tensor]:
    """Return an adapter's A `[r, I]`, B `[O, r]` and, for DoRA, magnitude `[O]`, by their names in the layer."""
    embeds = isinstance(layer.base_layer, nn.Embedding)
    tensors: dict[str, Tensor] = {}
    for matrix in "AB":
        name = f"lora_embedding_{matrix}.default" if embeds else f"lora_{matrix}.default.weight"
        tensors[name] = layer.get_parameter(name)
    if "default" in layer.lora_magnitude_vector:
        tensors["lora_magnitude_vector.default.weight"] = layer.lora_magnitude_vector["default"].weight
    return tensors


def _targets(source: AdapterSource, model: Any) -> list[str] | str:
    """Return the layer names, or the pattern, that PEFT is to adapt.

    `all-linear` leaves out the output layer, which may share its tensor with the embeddings.

    Raises:
        ValueError: if a target matches no layer, or matches a layer that cannot be adapted.
    """
    output, targets = model.get_output_embeddings(), source.adapter.targets
    adaptable, linear_names = set[str](), set[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            adaptable.add(name)
            if module is not output:
                linear_names.add(name.rpartition(".")[2])
        elif type(module) is nn.Embedding:  # a subclass may scale its output, as Gemma's does
            adaptable.add(name)
    if targets == "all-linear":
        return sorted(linear_names)
    listed = ", ".join(sorted(linear_names))
    choices = f"choices: {listed}, or all-linear; also the output's and the embeddings, paths, and patterns"
    for target in [targets] if isinstance(targets, str) else targets or [""]:
        # PEFT's own rule: a pattern matches the full path, a listed name matches the end of a path.
        pattern = target if isinstance(targets, str) else rf"(.*\.)?{re.escape(target)}"
        matches = [name for name, _ in model.named_modules() if name and re.fullmatch(pattern, name)]
        if not matches:
            raise source.error(f"targets: no layer is called {target!r}; {choices}")
        if unable := sorted(set(matches) - adaptable):
            raise source.error(f"targets: {target!r} means {', '.join(unable[:3])}, which cannot be adapted; {choices}")
    return targets if isinstance(targets, str) else sorted(set(targets))
