"""Loading weights of Hugging Face models, and copying new weights into a model in use: all tensors or none."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Collection, Mapping, Sequence
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

from marl.core.errors import Notice
from marl.models.half_precision import in_mixed_precision
from marl.models.hf_folder import ADAPTER_WEIGHTS, weight_files
from marl.models.template_defaults import uses_variable, with_defaults
from marl.protocols import SharedWeights

if TYPE_CHECKING:
    from marl.models.pretrained import PretrainedSource  # which imports this module to load a model
    from marl.protocols import Weights

LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, SafetensorError, struct.error)
"""Errors raised by Transformers for folders and names that it cannot load."""


def device_of(name: str) -> torch.device:
    """Return the torch device `name`; `auto` is `cuda` if a GPU is available, else `cpu`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(source: PretrainedSource) -> Any:
    """Load the model of `source` in eval mode, on its device.

    Raises:
        ValueError: if the model cannot be read, or lacks weights.
    """
    logging.disable_progress_bar()
    arguments = gguf_arguments(source)
    if source.gguf_file:
        from transformers import GgufConfig  # of 5.19: releases that cannot read GGUF so need not have it

        # A model that is marked as quantised cannot learn, and Transformers refuses to save it.
        arguments["quantization_config"] = GgufConfig(dequantize=True)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.path,
            dtype=source.dtype,
            attn_implementation=source.attention,
            trust_remote_code=source.trust_remote_code,
            output_loading_info=True,
            **arguments,
        )
    except LOADING_ERRORS as error:
        raise source.error(f"cannot be loaded: {error}") from error
    model, report = loaded
    # Transformers fills missing weights with random numbers.
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise source.error(f"has no weights for {', '.join(missing[:5])} ({len(missing)} in all)")
    return in_mixed_precision(model.to(device_of(source.device)).eval())


def load_tokenizer(source: PretrainedSource) -> Any:
    """Load the tokenizer of `source`, with the source's variables as defaults of the chat template.

    Raises:
        ValueError: if the tokenizer cannot be read, or if the chat template does not read a variable.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            source.path, trust_remote_code=source.trust_remote_code, **gguf_arguments(source)
        )
    except LOADING_ERRORS as error:
        raise source.error(f"has no readable tokenizer: {error}") from error
    template, variables = tokenizer.chat_template, json.loads(source.chat_template_kwargs)
    templates = list(template.values()) if isinstance(template, dict) else [template or ""]
    unread: list[str] = []
    for name, value in variables.items():
        # The default of every model; most templates have no such variable.
        is_default = (name, value) == ("enable_thinking", False)
        if not is_default and not any(uses_variable(text, name) for text in templates):
            unread.append(name)
    if unread:
        raise source.error(f"chat_template_kwargs: its chat template reads no {', '.join(unread)}")
    if isinstance(template, dict):
        tokenizer.chat_template = {name: with_defaults(text, variables) for name, text in template.items()}
    elif template:
        tokenizer.chat_template = with_defaults(template, variables)
    else:
        _warn_of_no_template(source.path)
    return tokenizer


def gguf_arguments(source: PretrainedSource) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for the GGUF file of `source`; none for other sources."""
    return {"gguf_file": source.gguf_file} if source.gguf_file else {}


@cache
def _warn_of_no_template(path: str) -> None:
    """Warn once about a model without a chat template."""
    warnings.warn(
        f"model {path!r} has no chat template and may know no chats: it reads the messages line by line, as they are",
        Notice,
        stacklevel=2,
    )


def copy_weights(model: Any, weights: Weights) -> None:
    """Overwrite every parameter of `model` in place.

    Raises:
        ValueError: if names are missing or unknown, or if shapes differ. The model is not changed then.
    """
    targets, name = model.state_dict(keep_vars=True), type(model).__name__
    if isinstance(weights, Path):
        _copy_files(targets, weight_files(weights), f"{name} from {weights}")
    elif isinstance(weights, SharedWeights):
        _copy_files(targets, [weights.file], f"{name} from {weights.file}")
    else:
        copy_tensors(targets, dict(weights), f"{name} from the given weights")


def read_tensors(weights: Weights) -> dict[str, Tensor]:
    """Return the published weights of a full model by name, reading files where necessary.

    Raises:
        ValueError: if a folder lacks one of its files.
    """
    if isinstance(weights, Path):
        tensors: dict[str, Tensor] = {}
        for file in weight_files(weights):
            tensors |= load_file(file)
        return tensors
    return load_file(weights.file) if isinstance(weights, SharedWeights) else dict(weights)


def copy_adapter_weights(targets: Mapping[str, Tensor], weights: Weights, label: str) -> None:
    """Overwrite the tensors `targets` of an adapter in place.

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
    """Check that an adapter's weights are finite.

    Raises:
        FloatingPointError: if a number is not finite.
    """
    # Adapters share batches: a row masks other policies by zeros, and 0 * nan is nan.
    if tensors and not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
        raise FloatingPointError(f"{label} holds numbers that are not finite")


def copy_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], label: str) -> None:
    """Overwrite all of `targets` in place. `label` names the owner of the weights in error messages.

    Raises:
        ValueError: as `copy_weights`.
    """
    _check_names_and_shapes(targets, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, label)
    with torch.no_grad():
        for name, tensor in tensors.items():
            targets[name].copy_(tensor)


def peft_weights(folder: Path) -> dict[str, Tensor]:
    """Return an adapter's tensors from a PEFT folder, by their names in an adapted model.

    Raises:
        ValueError: if the folder has no file of weights.
    """
    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        raise ValueError(f"{folder}: no {file.name} to load an adapter from")
    tensors: dict[str, Tensor] = {}
    for peft_name, tensor in load_file(file).items():
        # PEFT may have saved the base's embeddings beside an adapter of them.
        if ".lora_" in peft_name:
            name = peft_name.removeprefix("base_model.model.").removesuffix(".weight") + ".default"
            tensors[name if ".lora_embedding_" in name else f"{name}.weight"] = tensor
    return tensors


def _copy_files(targets: Mapping[str, Tensor], paths: Sequence[Path], label: str) -> None:
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in paths:
            file = stack.enter_context(safe_open(path, framework="pt"))
            files |= dict.fromkeys(file.keys(), file)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()}
        # The headers are checked before the first copy, so that a failure leaves the model unchanged.
        _check_names_and_shapes(targets, shapes, label)
        with torch.no_grad():
            for name, file in files.items():
                targets[name].copy_(file.get_tensor(name))


def _check_names_and_shapes(targets: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], label: str) -> None:
    # Tied names share one tensor, and one of the names is enough.
    present = {targets[name].data_ptr() for name in shapes if name in targets}
    missing = [name for name, tensor in targets.items() if tensor.data_ptr() not in present]
    unknown, reshaped = list[str](), list[str]()
    for name, shape in shapes.items():
        if name not in targets:
            unknown.append(name)
        elif shape != tuple(targets[name].shape):
            reshaped.append(f"{name} {shape} instead of {tuple(targets[name].shape)}")
    lines: list[str] = []
    for fault, names in (("missing", missing), ("unknown", unknown), ("of another shape", reshaped)):
        if names:
            lines.append(f"{fault}: {', '.join(names[:5])} ({len(names)})")
    if lines:
        raise ValueError(f"weights of {label}: {'; '.join(lines)}")
