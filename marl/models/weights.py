"""Loading of Hugging Face models, and overwriting of a loaded model's weights: all tensors or none."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Collection, Mapping
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

from marl.core.errors import RunError, UserNotice
from marl.models.half_precision import convert_to_mixed_precision
from marl.models.hf_folder import ADAPTER_WEIGHTS, safetensors_files
from marl.models.template_defaults import add_variable_defaults, uses_variable
from marl.protocols import SharedWeights

if TYPE_CHECKING:
    # Imported for type checkers only: `pretrained` imports this module, so a second import would be circular.
    from marl.models.pretrained import PretrainedSource
    from marl.protocols import Weights

LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, SafetensorError, struct.error)
"""Errors that Transformers raises for folders and names that it cannot load."""


def torch_device(device_name: str) -> torch.device:
    """Return the torch device `device_name`; `auto` is `cuda` if a GPU is available, else `cpu`.

    Raises:
        RunError: if the device is a GPU, but torch finds none.
    """
    if device_name.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(f"device: {device_name!r}, but torch {torch.__version__} finds no GPU here; choices: cpu, auto")
    if device_name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device_name)


def load_model(source: PretrainedSource) -> Any:
    """Load the model of `source` in eval mode, on its device.

    Raises:
        ValueError: if the model cannot be read, or lacks weights.
    """
    logging.disable_progress_bar()
    arguments = from_pretrained_gguf_arguments(source)
    if source.gguf_file:
        # imported here, because Transformers before 5.19 lacks `GgufConfig`; other models need none
        from transformers import GgufConfig

        # A model that is marked as quantised cannot learn, and Transformers refuses to save it.
        arguments["quantization_config"] = GgufConfig(dequantize=True)
    else:
        # Weights in pickle files could run code when they are read.
        arguments["use_safetensors"] = True
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
        raise source.error_naming_policy_and_model(f"cannot be loaded: {error}") from error
    model, report = loaded
    # Missing weights are refused, because Transformers would fill them with random numbers.
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise source.error_naming_policy_and_model(
            f"has no weights for {', '.join(missing[:5])} ({len(missing)} in all)"
        )
    return convert_to_mixed_precision(model.to(torch_device(source.device)).eval())


def load_tokenizer(source: PretrainedSource) -> Any:
    """Load the tokenizer of `source`, with its `chat_template_kwargs` as defaults of the chat template.

    Raises:
        ValueError: if the tokenizer cannot be read, or if the chat template does not read a variable.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            source.path, trust_remote_code=source.trust_remote_code, **from_pretrained_gguf_arguments(source)
        )
    except LOADING_ERRORS as error:
        raise source.error_naming_policy_and_model(f"has no readable tokenizer: {error}") from error
    # Transformers would save `local_files_only` in checkpoints, which would then depend on HF_HUB_OFFLINE.
    tokenizer.init_kwargs.pop("local_files_only", None)
    template, variables = tokenizer.chat_template, json.loads(source.chat_template_kwargs)
    all_templates = "\n".join(template.values() if isinstance(template, dict) else [template or ""])
    unread: list[str] = []
    for name, value in variables.items():
        # `enable_thinking: false` is passed to every template, so it is no mistake if a template ignores it.
        is_default = (name, value) == ("enable_thinking", False)
        if not is_default and not uses_variable(all_templates, name):
            unread.append(name)
    if unread:
        raise source.error_naming_policy_and_model(
            f"chat_template_kwargs: its chat template reads no {', '.join(unread)}"
        )
    if isinstance(template, dict):
        tokenizer.chat_template = {name: add_variable_defaults(text, variables) for name, text in template.items()}
    elif template:
        tokenizer.chat_template = add_variable_defaults(template, variables)
    else:
        _warn_once_of_missing_chat_template(source.path)
    return tokenizer


def from_pretrained_gguf_arguments(source: PretrainedSource) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for the GGUF file of `source`, or no arguments without a GGUF file."""
    return {"gguf_file": source.gguf_file} if source.gguf_file else {}


@cache
def _warn_once_of_missing_chat_template(path: str) -> None:
    """Warn once that the model at `path` has no chat template."""
    warnings.warn(
        f"model {path!r} has no chat template and may know no chats: it reads the messages line by line, as they are",
        UserNotice,
        stacklevel=2,
    )


def overwrite_model_weights(model: Any, weights: Weights) -> None:
    """Overwrite all weights of `model` in place by `weights`.

    Raises:
        ValueError: if names are missing or unknown, or if shapes differ. The model is not changed then.
    """
    targets, name = model.state_dict(keep_vars=True), type(model).__name__
    if not isinstance(weights, Path | SharedWeights):
        overwrite_tensors(targets, dict(weights), f"{name} from the given weights")
        return
    path = weights if isinstance(weights, Path) else weights.file
    with ExitStack() as stack:
        file_of: dict[str, Any] = {}
        for weight_file in safetensors_files(path) if isinstance(weights, Path) else [path]:
            file = stack.enter_context(safe_open(weight_file, framework="pt"))
            file_of |= dict.fromkeys(file.keys(), file)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name, file in file_of.items()}
        # All names and shapes are checked before the first copy, so that a failure leaves the model unchanged.
        _check_tensor_names_and_shapes(targets, shapes, f"{name} from {path}")
        with torch.no_grad():
            for tensor_name, file in file_of.items():
                targets[tensor_name].copy_(file.get_tensor(tensor_name))


def load_weight_tensors(weights: Weights) -> dict[str, Tensor]:
    """Return published weights as tensors by name. Folders and shared files are read.

    Raises:
        ValueError: if a folder lacks one of its files.
    """
    if isinstance(weights, Path):
        tensors: dict[str, Tensor] = {}
        for file in safetensors_files(weights):
            tensors |= load_file(file)
        return tensors
    return load_file(weights.file) if isinstance(weights, SharedWeights) else dict(weights)


def overwrite_adapter_tensors(targets: Mapping[str, Tensor], weights: Weights, error_label: str) -> None:
    """Overwrite `targets`, an adapter's tensors, in place by `weights`. `error_label`: their owner, for messages.

    Raises:
        FloatingPointError: as `check_finite`.
        ValueError: as `overwrite_model_weights`.
    """
    tensors = read_peft_weights(weights) if isinstance(weights, Path) else load_weight_tensors(weights)
    check_finite(tensors.values(), error_label)
    overwrite_tensors(targets, tensors, error_label)


def check_finite(tensors: Collection[Tensor], error_label: str) -> None:
    """Check that `tensors`, the weights of an adapter, are finite. `error_label`: owner of `tensors`, for messages.

    Raises:
        FloatingPointError: if a number is not finite.
    """
    # One adapter's NaN would spread: in a batch, other rows multiply this adapter by 0, and 0 * nan is nan.
    # A sum is not finite if one of its numbers is not, and takes a twentieth of the time of a maximum. A sum of finite
    # numbers may overflow, so each number is checked then.
    sums = [tensor.detach().sum() for tensor in tensors]
    if sums and not torch.stack(sums).isfinite().all() and not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise FloatingPointError(f"{error_label} holds numbers that are not finite")


def overwrite_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], error_label: str) -> None:
    """Overwrite all of `targets` in place by `tensors`. `error_label`: owner of `tensors`, for messages.

    Raises:
        ValueError: as `overwrite_model_weights`.
    """
    _check_tensor_names_and_shapes(
        targets, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, error_label
    )
    with torch.no_grad():
        for name, tensor in tensors.items():
            targets[name].copy_(tensor)


def read_peft_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the adapter in a PEFT folder, by their names in an adapted model.

    Raises:
        ValueError: if the folder has no file of weights.
    """
    file = folder / ADAPTER_WEIGHTS
    if not file.is_file():
        raise ValueError(f"{folder}: no {file.name} to load an adapter from")
    tensors: dict[str, Tensor] = {}
    for peft_name, tensor in load_file(file).items():
        # Only LoRA tensors are read: PEFT may also save the base's embeddings if they are adapted.
        if ".lora_" in peft_name:
            name = peft_name.removeprefix("base_model.model.").removesuffix(".weight") + ".default"
            tensors[name if ".lora_embedding_" in name else f"{name}.weight"] = tensor
    return tensors


def _check_tensor_names_and_shapes(
    targets: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], error_label: str
) -> None:
    """Check that tensors of these names and `shapes` replace all `targets`. `error_label`: their owner, for errors."""
    # Tied tensors have several names, and one of them is enough.
    present = {targets[name].data_ptr() for name in shapes if name in targets}
    missing = [name for name, tensor in targets.items() if tensor.data_ptr() not in present]
    unknown, reshaped = list[str](), list[str]()
    for name, shape in shapes.items():
        if name not in targets:
            unknown.append(name)
        elif shape != tuple(targets[name].shape):
            reshaped.append(f"{name} {shape} instead of {tuple(targets[name].shape)}")
    found = {"missing": missing, "unknown": unknown, "of another shape": reshaped}
    faults = [f"{fault}: {', '.join(names[:5])} ({len(names)})" for fault, names in found.items() if names]
    if faults:
        raise ValueError(f"weights of {error_label}: {'; '.join(faults)}")
