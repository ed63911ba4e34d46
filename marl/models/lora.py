"""Models that share the tensors of one base, and the PEFT adapters on them."""

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

from marl.models.hf_folder import ADAPTER_WEIGHTS
from marl.models.weights import copy_tensors, peft_weights

if TYPE_CHECKING:
    from marl.models.adapter import Adapted
    from marl.models.pretrained import Checkpoint

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
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
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
    _still(model)
    if settings.path is not None:
        _load(source, model, Path(settings.path).expanduser())
    return model.eval()


def adapter_layers(model: Any) -> Iterator[tuple[str, LoraLayer]]:
    """Each adapted layer by its place in the base."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer))


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """What learns, under the names by which learners publish it."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def bare(model: Any) -> Any | None:
    """The base alone: modules of its own with the tensors of `model`. None if the adapter changes what it says."""
    if not all(map(_idle, dict(adapter_layers(model)).values())):
        return None
    base = same_tensors(model)
    for place, layer in list(adapter_layers(base)):
        base.set_submodule(place, layer.base_layer)
    return base


def save_adapter(model: Any, folder: Path) -> None:
    """Write a PEFT folder that holds the adapter alone: PEFT itself would add adapted embeddings of the base."""
    tensors = get_peft_model_state_dict(model, adapter_name="default", save_embedding_layers=False)
    folder.mkdir(parents=True, exist_ok=True)
    whole = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(str(folder))


def lengths(layer: nn.Module, change_OI: Tensor) -> Tensor:
    """[O] lengths of the rows of the layer's weight after a change, as DoRA takes them."""
    weight: Any = layer.weight
    turned = isinstance(layer, Conv1D | nn.Embedding)
    return torch.linalg.norm((weight.T if turned else weight).to(change_OI.dtype) + change_OI, dim=1)


def matrices(layer: Any) -> dict[str, Tensor]:
    """A [r, I], B [O, r] and, of DoRA, magnitude [O] of a layer's adapter, by their names within the layer."""
    if isinstance(layer.base_layer, nn.Embedding):
        found = {f"lora_embedding_{x}.default": layer.get_parameter(f"lora_embedding_{x}.default") for x in "AB"}
    else:
        found = {f"lora_{x}.default.weight": layer.get_parameter(f"lora_{x}.default.weight") for x in "AB"}
    if "default" in layer.lora_magnitude_vector:
        found["lora_magnitude_vector.default.weight"] = layer.lora_magnitude_vector["default"].weight
    return found


@torch.no_grad()
def _still(model: Any) -> None:
    """PEFT takes a DoRA's first magnitudes in the base's type, where rounding alone would change what is said."""
    for _, layer in adapter_layers(model):
        a_RI, _, *magnitudes = matrices(layer).values()
        for each_O in magnitudes:
            each_O.copy_(lengths(layer.base_layer, a_RI.new_zeros(())))


@torch.no_grad()
def _idle(layer: Any) -> bool:
    """Whether an adapted layer says what it says without its adapter."""
    a_RI, b_OR, *magnitudes = matrices(layer).values()
    if bool(a_RI.any() and b_OR.any()):
        return False
    return all(torch.allclose(each_O, lengths(layer.base_layer, a_RI.new_zeros(()))) for each_O in magnitudes)


def _targets(source: Adapted, model: Any) -> list[str] | str:
    """What PEFT is to adapt. `all-linear` leaves the output's layer, which may be tied to the embeddings, as it is."""
    output, wanted = model.get_output_embeddings(), source.settings.targets
    able = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) or type(m) is nn.Embedding}
    linear = {n for n, m in able.items() if m is not output and not isinstance(m, nn.Embedding)}
    known = sorted({name.rpartition(".")[2] for name in linear})
    if wanted == "all-linear":
        return known
    choices = f"choices: {', '.join(known)}, or all-linear; also the output's and the embeddings, paths, and patterns"
    for target in [wanted] if isinstance(wanted, str) else wanted or [""]:
        # PEFT's own rule: a pattern for the whole path, or the end of it.
        pattern = target if isinstance(wanted, str) else rf"(.*\.)?{re.escape(target)}"
        met = [name for name, _ in model.named_modules() if name and re.fullmatch(pattern, name)]
        if not met:
            raise source.fault(f"targets: no layer is called {target!r}; {choices}")
        if odd := sorted(set(met) - able.keys()):
            raise source.fault(f"targets: {target!r} means {', '.join(odd[:3])}, which cannot be adapted; {choices}")
    return wanted if isinstance(wanted, str) else sorted(set(wanted))


def _load(source: Adapted, model: Any, folder: Path) -> None:
    try:
        copy_tensors(adapter_tensors(model), peft_weights(folder), str(folder))
    except ValueError as error:
        raise source.fault(error) from error
