"""PEFT adapters on models that share the tensors of one base model."""

from __future__ import annotations

import copy
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

from marl.models.adapter_targets import LayerNames, adapted_layers
from marl.models.fused_lora import FusedLora
from marl.models.hf_folder import ADAPTER_WEIGHTS
from marl.models.pretrained import PretrainedSource
from marl.models.weights import overwrite_tensors, read_peft_weights

if TYPE_CHECKING:
    # Imported for type checkers only: `adapter` imports this module, so a second import would be circular.
    from marl.models.adapter import AdapterSource

_SHARED_BASES: WeakValueDictionary[PretrainedSource, Any] = WeakValueDictionary()
"""Source -> base model in memory. Weights of a base never change, so that all users in a process share the model."""


def load_shared_base(source: PretrainedSource) -> Any:
    """Return the frozen base model of `source`, loaded once for all users in this process."""
    # The key omits the policy's name, which only serves error messages.
    key = replace(source, policy="")
    model = _SHARED_BASES.get(key)
    if model is None:
        model = _SHARED_BASES[key] = source.model().requires_grad_(False)
    return model


def copy_model_sharing_tensors(model: Any) -> Any:
    """Return a copy of `model` with new modules that share the tensors of `model`."""
    # `deepcopy` reuses objects that are already in its memo; so all tensors stay shared.
    memo = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)


def load_adapted_model(source: AdapterSource) -> Any:
    """Return the base model of `source` with the adapter. Only the adapter is trainable, in float32.

    Raises:
        ValueError: if the base lacks a target layer, or if the tensors in the adapter's folder do not fit.
    """
    settings, model = source.adapter, copy_model_sharing_tensors(source.base)
    layers = _target_layers(source, model)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # PEFT divides by the rank: any number will do
        lora_dropout=settings.dropout,
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
        target_modules=layers,
        task_type="CAUSAL_LM",
    )
    config._register_custom_module({nn.Linear: FusedLora})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model.add_adapter(config)
    # The list is set again, because PEFT has turned it into a set, which each process saves in another order.
    config.target_modules = layers
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
            overwrite_tensors(adapter_tensors(model), read_peft_weights(settings.folder), str(settings.folder))
        except ValueError as error:
            raise source.error_naming_policy_and_model(error) from error
    return model.eval()


def adapter_layers(model: Any) -> Iterator[tuple[str, LoraLayer]]:
    """Return (path, layer) of each layer of `model` that has an adapter."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """Return the trainable tensors of `model`, by the names under which learners publish them."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def unadapted_base(model: Any) -> Any | None:
    """Return a copy of `model` without its adapter, or None if the adapter changes the output. Tensors are shared."""
    with torch.no_grad():
        for _, layer in adapter_layers(model):
            a_RI, b_OR, *magnitudes = adapter_matrices(layer).values()
            if bool(a_RI.any() and b_OR.any()):
                return None
            for magnitude_O in magnitudes:
                if not torch.allclose(magnitude_O, dora_row_norms(layer.base_layer, a_RI.new_zeros(()))):
                    return None
    base = copy_model_sharing_tensors(model)
    for path, layer in list(adapter_layers(base)):
        base.set_submodule(path, layer.base_layer)
    return base


def save_adapter(model: Any, folder: Path, full_tensors: dict[str, Tensor] | None = None) -> None:
    """Write the adapter of `model` to a PEFT folder.

    If the weights are sharded, `full_tensors` holds the adapter's tensors by their names in the `state_dict`.
    """
    # `save_embedding_layers=False`: PEFT would also save the base's embeddings if they are adapted.
    tensors = get_peft_model_state_dict(model, full_tensors, adapter_name="default", save_embedding_layers=False)
    folder.mkdir(parents=True, exist_ok=True)
    renamed = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(renamed, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(str(folder))


def dora_row_norms(layer: nn.Module, lora_product_OI: Tensor) -> Tensor:
    """Return the Euclidean norms `[O]` of the rows of the layer's weight plus `lora_product_OI`, as DoRA needs them."""
    weight: Any = layer.weight
    transposed = isinstance(layer, Conv1D | nn.Embedding)
    return torch.linalg.norm((weight.T if transposed else weight).to(lora_product_OI.dtype) + lora_product_OI, dim=1)


def adapter_matrices(layer: Any) -> dict[str, Tensor]:
    """Return the adapter's tensors in `layer` by name: A `[r, I]`, B `[O, r]` and, for DoRA, the magnitude `[O]`."""
    embeds = isinstance(layer.base_layer, nn.Embedding)
    tensors: dict[str, Tensor] = {}
    for matrix in "AB":
        name = f"lora_embedding_{matrix}.default" if embeds else f"lora_{matrix}.default.weight"
        tensors[name] = layer.get_parameter(name)
    if "default" in layer.lora_magnitude_vector:
        tensors["lora_magnitude_vector.default.weight"] = layer.lora_magnitude_vector["default"].weight
    return tensors


def _target_layers(source: AdapterSource, model: Any) -> list[str]:
    """Return the names or paths of the layers that the adapter of `source` adapts, for PEFT's `target_modules`.

    `all-linear` leaves out the output layer, because the output layer may share its tensor with the embeddings.

    Raises:
        ValueError: if a target matches no layer, or matches a layer that cannot be adapted.
    """
    output, adaptable, linear_names = model.get_output_embeddings(), set[str](), set[str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            adaptable.add(name)
            if module is not output:
                linear_names.add(name.rpartition(".")[2])
        elif type(module) is nn.Embedding:
            # Subclasses of `nn.Embedding` may scale their output, as Gemma's does, and cannot be adapted.
            adaptable.add(name)
    paths = [name for name, _ in model.named_modules() if name]
    try:
        return adapted_layers(source.adapter.targets, LayerNames(paths, adaptable, linear_names))
    except ValueError as error:
        raise source.error_naming_policy_and_model(error) from error
