"""Published weights on their way to other processes: bytes in Ray's object store, which a machine holds once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marl.models.weights import read_tensors

if TYPE_CHECKING:
    from marl.protocols import Weights


class PackedTensor(NamedTuple):
    """A tensor as plain bytes; Ray lets all processes of a machine read the same ones."""

    data: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]


Packed = dict[str, PackedTensor] | Path
"""Weights by name, or a folder that every machine must see."""


def pack(weights: Weights) -> Packed:
    """Return weights in a form that travels; what is in a file of this machine is read."""
    if isinstance(weights, Path):
        return weights
    return {name: _packed(tensor) for name, tensor in read_tensors(weights).items()}


def unpack(packed: Packed) -> Weights:
    """Return weights for `Engine.load_weights`; they are read-only."""
    if isinstance(packed, Path):
        return packed
    return [(name, _unpacked(each)) for name, each in packed.items()]


def size_of(packed: Packed) -> int:
    """Return the bytes that travel."""
    return 0 if isinstance(packed, Path) else sum(each.data.nbytes for each in packed.values())


def _packed(tensor: torch.Tensor) -> PackedTensor:
    plain = tensor.detach().cpu().contiguous()
    return PackedTensor(plain.reshape(-1).view(torch.uint8).numpy(), str(plain.dtype)[6:], tuple(plain.shape))


def _unpacked(packed: PackedTensor) -> torch.Tensor:
    # A copy: torch takes it that what it is given may be written to.
    return torch.from_numpy(packed.data.copy()).view(getattr(torch, packed.dtype)).reshape(packed.shape)
