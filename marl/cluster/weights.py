"""Published weights on their way to other processes: bytes in Ray's object store, which a machine holds once.

Weights on a GPU are read there by processes that use the same one (`marl.cluster.gpu_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marl.cluster.gpu_weights import GpuHandle, Lender, on_one_gpu, opened
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


class Publication:
    """Weights that were published, until the last process has taken them."""

    def __init__(self, weights: Weights, lender: Lender, store: Callable[[Packed], Any]) -> None:
        """Copy them, as they may be changed afterwards. `store` puts bytes into Ray's object store."""
        tensors = {} if isinstance(weights, Path) else read_tensors(weights)
        self._store, self._reference = store, None
        self._lent = lender.lend(tensors) if on_one_gpu(tensors) else None
        self.stored_bytes = 0
        """Bytes that were put into the object store."""
        if self._lent is None:
            self._put(pack(weights if isinstance(weights, Path) else tensors.items()))

    def towards(self, gpus: Collection[str]) -> Any:
        """Return what a process that uses these GPUs (UUIDs) opens with `receive`: a handle, or a reference."""
        if self._lent and self._lent.gpu in gpus:
            return self._lent.handle()
        if self._lent and self._reference is None:
            self._put(pack(self._lent.tensors()))
        return self._reference

    def _put(self, packed: Packed) -> None:
        self._reference, self.stored_bytes = self._store(packed), size_of(packed)


def receive(sent: Any, fetch: Callable[[Any], Packed]) -> Weights:
    """Return the weights that a `Publication` sent; `fetch` takes bytes out of the object store."""
    return opened(sent) if isinstance(sent, GpuHandle) else unpack(fetch(sent))


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
