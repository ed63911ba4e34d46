"""State that survives a restart: on disk without pickle, tensors in safetensors, everything else in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

_TENSOR = "__tensor__"
"""Key under which the place of a tensor stands in the JSON."""
_QUOTE = "'"
"""Put before keys that would be taken for `_TENSOR`, or for one that was quoted."""


class Stateful(Protocol):
    """Survives a restart. Its state is a nest of dicts with string keys, numbers, strings, lists and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a nest of dicts, lists, numbers, strings and tensors."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = _split(state, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    # safetensors refuses tensors that share memory (tied weights): every entry gets memory of its own.
    save_file(
        {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}, folder / "state.safetensors"
    )
    (folder / "state.json").write_text(json.dumps(plain))


def load_state(folder: Path) -> dict[str, Any]:
    """Return what `save_state` wrote, bit for bit.

    Raises:
        ValueError: if it is no such state: not JSON, nested too deep, or a tensor is missing.
    """
    from safetensors.torch import load_file

    tensors = load_file(folder / "state.safetensors")
    try:
        return _join(json.loads((folder / "state.json").read_text(encoding="utf-8")), tensors)
    except RecursionError:
        raise ValueError("state.json is nested too deep") from None


def expect_alike(saved: Mapping[str, Any], held: Mapping[str, Tensor], label: str) -> None:
    """Check that saved tensors can replace those held, number by number: same names, shapes and types.

    Raises:
        ValueError: naming `label`, the first tensor that differs, and both sides; nothing has been changed by then.
    """
    if saved.keys() != held.keys():
        raise ValueError(f"{label}: saved and present tensors differ: {sorted(saved.keys() ^ held.keys())[:5]}")
    for name, tensor in held.items():
        if (was := _form(saved[name])) != (now := _form(tensor)):
            raise ValueError(f"{label}: {name!r} was saved as {was}, but is {now} here")


def _form(value: Any) -> str:
    import torch

    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        while path in tensors:  # a key may hold the sign that parts keys
            path += _QUOTE
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"state {path or 'root'!r} has the key {key!r}: keys must be strings")
        return {_quoted(key): _split(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_split(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _quoted(key: str) -> str:
    return _QUOTE + key if key.lstrip(_QUOTE) == _TENSOR else key


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            name = value[_TENSOR]
            if not isinstance(name, str) or name not in tensors:
                raise ValueError(f"state.json names the tensor {name!r}, which state.safetensors lacks")
            return tensors[name]
        return {_unquoted(key): _join(item, tensors) for key, item in value.items()}
    return [_join(item, tensors) for item in value] if isinstance(value, list) else value


def _unquoted(key: str) -> str:
    return key[1:] if key != _TENSOR and key.lstrip(_QUOTE) == _TENSOR else key
