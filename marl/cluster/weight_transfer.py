"""Transfer of published weights to other processes, as bytes in Ray's object store: one copy on each machine.

Processes on the learner's GPU read the weights from GPU memory instead (`marl.cluster.gpu_weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from marl.cluster.gpu_weights import GpuBufferPool, GpuWeightsHandle, on_one_gpu, open_handle
from marl.models.weights import read_tensors
from marl.protocols import models
from marl.rollout.shards import LoadWeights, SimulatorShard

_FETCH_S = 600.0
"""Maximum time for new weights to arrive, in seconds."""


class PackedTensor(NamedTuple):
    """A tensor as plain bytes. All processes of a machine share one copy in Ray's object store."""

    data: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]


PackedWeights = dict[str, PackedTensor] | Path
"""Weights by name, or a folder on a disk shared by every machine."""


class PublishedWeights:
    """Weights of one publication, until the last process has loaded them."""

    def __init__(self, weights: models.Weights, buffers: GpuBufferPool, store: Callable[[PackedWeights], Any]) -> None:
        """Copy `weights`, as the learner may change them afterwards. `store` puts bytes into Ray's object store."""
        tensors = {} if isinstance(weights, Path) else read_tensors(weights)
        self._store, self._reference = store, None
        self.on_gpu = buffers.share(tensors) if on_one_gpu(tensors) else None
        self.stored_bytes = 0
        """Number of bytes put into the object store."""
        if self.on_gpu is None:
            self._put(pack(weights if isinstance(weights, Path) else tensors.items()))

    def payload_for(self, gpus: Collection[str]) -> Any:
        """Return the argument of `receive` for a process on these GPUs (UUIDs): a GPU handle or an object reference."""
        if self.on_gpu and self.on_gpu.gpu in gpus:
            return self.on_gpu.handle()
        if self.on_gpu and self._reference is None:
            self._put(pack(self.on_gpu.tensors()))
        return self._reference

    def _put(self, packed: PackedWeights) -> None:
        self._reference, self.stored_bytes = self._store(packed), size_of(packed)


def load_weights(shard: SimulatorShard, command: LoadWeights) -> None:
    """Load the weights behind a command's payload into the engines of `shard`."""
    shard.handle(replace(command, weights=receive(command.weights, partial(ray.get, timeout=_FETCH_S))))
    if torch.cuda.is_initialized():
        # The run reuses its copy on the GPU after this reply, so the reads must have finished.
        torch.cuda.synchronize()


def receive(payload: Any, fetch: Callable[[Any], PackedWeights]) -> models.Weights:
    """Return the weights behind a payload of `PublishedWeights`. `fetch` gets bytes from the object store."""
    return open_handle(payload) if isinstance(payload, GpuWeightsHandle) else unpack(fetch(payload))


def pack(weights: models.Weights) -> PackedWeights:
    """Return `weights` as plain bytes. A file of this machine is read; a folder stays a path."""
    if isinstance(weights, Path):
        return weights
    packed: dict[str, PackedTensor] = {}
    for name, tensor in read_tensors(weights).items():
        plain = tensor.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy()  # numpy has no bfloat16
        packed[name] = PackedTensor(data, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))
    return packed


def unpack(packed: PackedWeights) -> models.Weights:
    """Return packed weights in the form of `Engine.load_weights`."""
    if isinstance(packed, Path):
        return packed
    tensors: list[tuple[str, torch.Tensor]] = []
    for name, tensor in packed.items():
        # Bytes of the object store are read-only, and torch does not support read-only tensors.
        data = torch.from_numpy(tensor.data.copy())
        tensors.append((name, data.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)))
    return tensors


def size_of(packed: PackedWeights) -> int:
    """Return the number of bytes to transfer."""
    return 0 if isinstance(packed, Path) else sum(tensor.data.nbytes for tensor in packed.values())
