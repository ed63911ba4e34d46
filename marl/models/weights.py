"""Weights of Hugging Face models: loading them, and copying new ones into a model that is in use, all or nothing."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from marl.errors import Notice
from marl.models.half_precision import in_mixed_precision
from marl.models.hf_folder import ADAPTER_WEIGHTS, weight_files
from marl.models.template_defaults import reads, with_defaults
from marl.protocols import SharedWeights

if TYPE_CHECKING:
    from marl.models.pretrained import PretrainedSource
    from marl.protocols import Weights

UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, SafetensorError, struct.error)
"""Errors that Transformers raises for folders and names that it cannot load."""


def device_of(name: str) -> torch.device:
    """Return the device called `name`; `auto` is `cuda` where there is one, else `cpu`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(source: PretrainedSource) -> Any:
    """Load the model in eval mode, on its device.

    Raises:
        ValueError: if it cannot be read, or lacks weights (Transformers would make them up at random).
    """
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.path,
            dtype=source.dtype,
            attn_implementation=source.attention,
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
            **_unpacking(source),
        )
    except UNREADABLE as error:
        raise source.fault(f"cannot be loaded: {error}") from error
    model, report = loaded
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise source.fault(f"has no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
    return in_mixed_precision(model.to(device_of(source.device)).eval())


def load_tokenizer(source: PretrainedSource) -> Any:
    """Load the tokenizer, its chat template with the variables of the source.

    Raises:
        ValueError: if it cannot be read, or if its template has no such variable.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            source.path, trust_remote_code=source.trust_remote_code, **gguf_file(source)
        )
    except UNREADABLE as error:
        raise source.fault(f"has no readable tokenizer: {error}") from error
    template, variables = tokenizer.chat_template, json.loads(source.chat_template_kwargs)
    templates = list(template.values()) if isinstance(template, dict) else [template or ""]
    wanted = [name for name, value in variables.items() if (name, value) != ("enable_thinking", False)]
    if unread := [name for name in wanted if not any(reads(text, name) for text in templates)]:
        raise source.fault(f"chat_template_kwargs: its chat template reads no {', '.join(unread)}")
    if isinstance(template, dict):
        tokenizer.chat_template = {name: with_defaults(text, variables) for name, text in template.items()}
    elif template:
        tokenizer.chat_template = with_defaults(template, variables)
    else:
        _tell_of_no_template(source.path)
    return tokenizer


def gguf_file(source: PretrainedSource) -> dict[str, Any]:
    """Return the argument of `from_pretrained` that has it read a GGUF file, if the source is one."""
    return {"gguf_file": source.gguf_file} if source.gguf_file else {}


def _unpacking(source: PretrainedSource) -> dict[str, Any]:
    """Return the arguments that have it read a GGUF file and forget that the weights were quantised.

    A model that is marked as quantised cannot learn, and Transformers refuses to save it.
    """
    if not source.gguf_file:
        return {}
    from transformers import GgufConfig  # of 5.19: releases that cannot read GGUF so need not have it

    return {**gguf_file(source), "quantization_config": GgufConfig(dequantize=True)}


@cache
def _tell_of_no_template(path: str) -> None:
    """Tell once how a model without a chat template is asked."""
    warnings.warn(
        f"model {path!r} has no chat template and may know no chats: it reads the messages line by line, as they are",
        Notice,
        stacklevel=2,
    )


def copy_weights(model: Any, weights: Weights) -> None:
    """Overwrite every parameter of `model` in place.

    Raises:
        ValueError: if names are missing or unknown, or shapes differ; nothing is changed then.
    """
    targets, name = model.state_dict(keep_vars=True), type(model).__name__
    if isinstance(weights, Path):
        _copy_files(targets, weight_files(weights), f"{name} from {weights}")
    elif isinstance(weights, SharedWeights):
        _copy_files(targets, [weights.file], f"{name} from {weights.file}")
    else:
        copy_tensors(targets, dict(weights), f"{name} from the given weights")


def read_tensors(weights: Weights) -> dict[str, Tensor]:
    """Return published weights of a whole model by name; those in files are read.

    Raises:
        ValueError: if a folder lacks one of its files.
    """
    if isinstance(weights, Path):
        return {name: tensor for file in weight_files(weights) for name, tensor in load_file(file).items()}
    return load_file(weights.file) if isinstance(weights, SharedWeights) else dict(weights)


def copy_adapter_weights(targets: Mapping[str, Tensor], weights: Weights, label: str) -> None:
    """Overwrite the tensors of an adapter, `targets`, in place.

    Raises:
        FloatingPointError: as `check_finite`.
        ValueError: as `copy_weights`.
    """
    if isinstance(weights, Path):
        tensors = peft_weights(weights)
    else:
        tensors = load_file(weights.file) if isinstance(weights, SharedWeights) else dict(weights)
    check_finite(tensors.values(), label)
    copy_tensors(targets, tensors, label)


def check_finite(tensors: Collection[Tensor], label: str) -> None:
    """Check an adapter's weights: what is not finite would reach rows of other policies, as 0 * nan is nan.

    Raises:
        FloatingPointError: if a number is not finite.
    """
    if tensors and not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
        raise FloatingPointError(f"{label} holds numbers that are not finite")


def copy_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], label: str) -> None:
    """Overwrite all of `targets` in place. `label`: the owner of the weights, for error messages.

    Raises:
        ValueError: as `copy_weights`.
    """
    _compare(targets, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, label)
    _copy(targets, tensors.items())


def peft_weights(folder: Path) -> dict[str, Tensor]:
    """Return an adapter's tensors from a PEFT folder, by their names in a model that it was added to.

    Raises:
        ValueError: if there are none.
    """
    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        raise ValueError(f"{folder}: no {file.name} to load an adapter from")
    # If embeddings are adapted, PEFT saves those of the base, too.
    return {_name_in_model(name): tensor for name, tensor in load_file(file).items() if ".lora_" in name}


def _name_in_model(peft_name: str) -> str:
    name = peft_name.removeprefix("base_model.model.").removesuffix(".weight") + ".default"
    return name if ".lora_embedding_" in name else name + ".weight"


@torch.no_grad()
def _copy(targets: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
    for name, tensor in weights:
        targets[name].copy_(tensor)


def _copy_files(targets: Mapping[str, Tensor], paths: Sequence[Path], label: str) -> None:
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        holders = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in holders.items()}
        _compare(targets, shapes, label)
        _copy(targets, ((name, file.get_tensor(name)) for name, file in holders.items()))


def _compare(targets: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], label: str) -> None:
    """Check names and shapes. Tied names stand for one tensor: any one of them will do."""
    held = {targets[name].data_ptr() for name in shapes if name in targets}
    missing = [name for name, tensor in targets.items() if tensor.data_ptr() not in held]
    unknown = [name for name in shapes if name not in targets]
    reshaped = [
        f"{name} {shape} instead of {tuple(targets[name].shape)}"
        for name, shape in shapes.items()
        if name in targets and shape != tuple(targets[name].shape)
    ]
    faults = {"missing": missing, "unknown": unknown, "of another shape": reshaped}
    lines = [f"{fault}: {', '.join(names[:5])} ({len(names)})" for fault, names in faults.items() if names]
    if lines:
        raise ValueError(f"weights of {label}: {'; '.join(lines)}")
