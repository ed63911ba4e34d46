"""State files of checkpoints: tensors as safetensors and all other data as JSON. Loading runs no pickled code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

_TENSOR = "__tensor__"
"""Key of the JSON object that represents a tensor. The value is the tensor's name in the safetensors file."""
_QUOTE = "'"
"""Prefix that escapes a key of the state that equals `_TENSOR`. An escaped key in the state gets one more prefix."""


class Stateful(Protocol):
    """Object with a state for checkpoints: nested dicts with string keys, lists, numbers, strings and tensors."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class MetricsReporter:
    """Base of objects that report the metrics of their last step."""

    _metrics: Mapping[str, float] = MappingProxyType({})

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step (default: none)."""
        return dict(self._metrics)


class StatelessPlugin(MetricsReporter):
    """Base class of credit rules and experiences without a state and, unless overridden, without metrics."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing, because the object has no state."""


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `state` (nested dicts, lists, numbers, strings and tensors) to `state.json` and `state.safetensors`."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    plain = _extract_tensors(state, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    # safetensors refuses tensors that share memory (tied weights), so every tensor is cloned.
    clones = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(clones, folder / "state.safetensors")
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
        return _restore_tensors(json.loads((folder / "state.json").read_text(encoding="utf-8")), tensors)
    except RecursionError:
        raise ValueError("state.json is nested too deep") from None


def check_same_tensors(
    saved_tensors: Mapping[str, Any], current_tensors: Mapping[str, Tensor], name_in_error: str
) -> None:
    """Check that `saved_tensors` have the names, shapes and dtypes of `current_tensors`, to which they will be copied.

    Raises:
        ValueError: naming `name_in_error`, the first tensor that differs, and both shapes and dtypes.
    """
    if saved_tensors.keys() != current_tensors.keys():
        different_names = sorted(saved_tensors.keys() ^ current_tensors.keys())
        raise ValueError(f"{name_in_error}: saved and present tensors differ: {different_names[:5]}")
    for name, tensor in current_tensors.items():
        if (before := _shape_and_dtype(saved_tensors[name])) != (now := _shape_and_dtype(tensor)):
            raise ValueError(f"{name_in_error}: {name!r} was saved as {before}, but is {now} here")


def _shape_and_dtype(value: Any) -> str:
    """Return shape and dtype of a tensor, or the type of another value, for error messages."""
    import torch

    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def _extract_tensors(value: Any, name_prefix: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` as JSON, with its tensors moved to `tensors` under names that begin with `name_prefix`."""
    import torch

    if isinstance(value, torch.Tensor):
        # Two paths can be equal, because keys may contain the separator "/".
        while name_prefix in tensors:
            name_prefix += _QUOTE
        tensors[name_prefix] = value
        return {_TENSOR: name_prefix}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"state {name_prefix or 'root'!r} has the key {key!r}: keys must be strings")
        plain: dict[str, Any] = {}
        for key, child in value.items():
            is_ambiguous = key.lstrip(_QUOTE) == _TENSOR
            plain[_QUOTE + key if is_ambiguous else key] = _extract_tensors(child, f"{name_prefix}/{key}", tensors)
        return plain
    if isinstance(value, list | tuple):
        return [_extract_tensors(child, f"{name_prefix}/{index}", tensors) for index, child in enumerate(value)]
    return value


def _restore_tensors(json_value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state from which `_extract_tensors` made the JSON `json_value` and `tensors`."""
    if isinstance(json_value, list):
        return [_restore_tensors(child, tensors) for child in json_value]
    if not isinstance(json_value, dict):
        return json_value
    if _TENSOR in json_value:
        name = json_value[_TENSOR]
        if not isinstance(name, str) or name not in tensors:
            raise ValueError(f"state.json names the tensor {name!r}, which state.safetensors lacks")
        return tensors[name]
    state: dict[str, Any] = {}
    for key, child in json_value.items():
        is_quoted = key.lstrip(_QUOTE) == _TENSOR
        state[key.removeprefix(_QUOTE) if is_quoted else key] = _restore_tensors(child, tensors)
    return state
