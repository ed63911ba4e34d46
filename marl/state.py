"""State that survives a restart: on disk without pickle, tensors in safetensors, everything else in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

_TENSOR = "__tensor__"


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
    """Return what `save_state` wrote, bit for bit."""
    from safetensors.torch import load_file

    return _join(json.loads((folder / "state.json").read_text()), load_file(folder / "state.safetensors"))


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"state {path or 'root'!r} has the key {key!r}: keys must be strings")
        return {key: _split(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_split(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _join(item, tensors) for key, item in value.items()}
    return [_join(item, tensors) for item in value] if isinstance(value, list) else value
