"""State files of checkpoints: tensors as safetensors and all other data as JSON. Loading runs no pickled code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from marl.core.state_shares import ShardedTensor, StateShares, read_shares, write_shares
from marl.core.state_tree import extract_leaves, insert_leaves

if TYPE_CHECKING:
    from torch import Tensor

_SHARES = "shares"
"""Folder of a state's folder for states in shares; one folder within it for each of them."""


class Stateful(Protocol):
    """Object with a state for checkpoints: nested dicts with string keys, lists, numbers, strings and tensors."""

    def state_dict(self) -> Mapping[str, Any]: ...
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
    """Write `state` (nested dicts, lists, numbers, strings and tensors) to `state.json` and `state.safetensors`.

    A value that is `StateShares` is written to files of its own, one for each share.
    """
    from safetensors.torch import save_file

    leaves: dict[str, Any] = {}
    plain = extract_leaves(state, _is_tensor_or_shares, leaves)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, StateShares)}
    for index, name in enumerate(sorted(leaves.keys() - tensors.keys())):
        write_shares(folder / _SHARES / f"{index:03d}", name, leaves[name])
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

    leaves: dict[str, Any] = load_file(folder / "state.safetensors")
    leaves |= dict(map(read_shares, sorted((folder / _SHARES).glob("*"))))
    try:
        return insert_leaves(json.loads((folder / "state.json").read_text(encoding="utf-8")), leaves)
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

    is_tensor = isinstance(value, torch.Tensor | ShardedTensor)
    return f"{list(value.shape)} of {value.dtype}" if is_tensor else type(value).__name__


def _is_tensor_or_shares(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor | StateShares)
