"""State files of checkpoints: tensors as safetensors and everything else as JSON, so that loading runs no pickled
code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

_TENSOR = "__tensor__"
"""Key of the JSON object that stands for a tensor. The value is the tensor's name in the safetensors file."""
_QUOTE = "'"
"""Prefix of keys that equal `_TENSOR`, with or without quotes before it."""


class Stateful(Protocol):
    """Object with a state that checkpoints save: nested dicts with string keys, lists, numbers, strings and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `state` (nested dicts, lists, numbers, strings and tensors) to `state.json` and `state.safetensors`."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = _extract_tensors(state, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    # safetensors refuses tensors that share memory (tied weights), so every entry is cloned.
    entries = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(entries, folder / "state.safetensors")
    (folder / "state.json").write_text(json.dumps(plain))


def load_state(folder: Path) -> dict[str, Any]:
    """Return the state saved by `save_state` in `folder`, bit for bit.

    Raises:
        ValueError: if the folder holds no such state: `state.json` is not JSON or is nested too deep, or a tensor is
            missing.
    """
    from safetensors.torch import load_file

    tensors = load_file(folder / "state.safetensors")
    try:
        return _insert_tensors(json.loads((folder / "state.json").read_text(encoding="utf-8")), tensors)
    except RecursionError:
        raise ValueError("state.json is nested too deep") from None


def check_same_tensors(saved: Mapping[str, Any], held: Mapping[str, Tensor], label: str) -> None:
    """Check that tensors in `saved` have the names, shapes and dtypes of those in `held`, before they are copied there.

    Raises:
        ValueError: naming `label`, the first tensor that differs, and both shapes and dtypes.
    """
    if saved.keys() != held.keys():
        raise ValueError(f"{label}: saved and present tensors differ: {sorted(saved.keys() ^ held.keys())[:5]}")
    for name, tensor in held.items():
        if (before := _describe(saved[name])) != (now := _describe(tensor)):
            raise ValueError(f"{label}: {name!r} was saved as {before}, but is {now} here")


def _describe(value: Any) -> str:
    """Return shape and dtype of a tensor, or the type of another value, for error messages."""
    import torch

    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _extract_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON, with its tensors moved to `tensors` under names that begin with `path`."""
    import torch

    if isinstance(value, torch.Tensor):
        # Two paths can be equal, because keys may contain the separator "/".
        while path in tensors:
            path += _QUOTE
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"state {path or 'root'!r} has the key {key!r}: keys must be strings")
        plain: dict[str, Any] = {}
        for key, item in value.items():
            is_ambiguous = key.lstrip(_QUOTE) == _TENSOR
            plain[_QUOTE + key if is_ambiguous else key] = _extract_tensors(item, f"{path}/{key}", tensors)
        return plain
    if isinstance(value, list | tuple):
        return [_extract_tensors(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _insert_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the inverse of `_extract_tensors`."""
    if isinstance(value, list):
        return [_insert_tensors(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        name = value[_TENSOR]
        if not isinstance(name, str) or name not in tensors:
            raise ValueError(f"state.json names the tensor {name!r}, which state.safetensors lacks")
        return tensors[name]
    state: dict[str, Any] = {}
    for key, item in value.items():
        is_quoted = key.lstrip(_QUOTE) == _TENSOR
        state[key.removeprefix(_QUOTE) if is_quoted else key] = _insert_tensors(item, tensors)
    return state
