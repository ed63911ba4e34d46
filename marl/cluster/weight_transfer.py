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

from marl.cluster.gpu_weights import GpuBufferPool, GpuWeightsHandle, are_on_one_gpu, open_shared_weights
from marl.models.weights import load_weight_tensors
from marl.protocols import models
from marl.rollout.shards import LoadWeightsCommand, SimulatorShard

_FETCH_S = 600.0
"""Maximum time to fetch new weights from the object store, in seconds."""


class PackedTensor(NamedTuple):
    """Tensor as plain bytes, of which all processes of a machine share one copy in Ray's object store."""

    data: NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]


PackedWeights = dict[str, PackedTensor] | Path
"""Packed weights by name, or a folder on a disk that every machine sees."""


class PublishedWeights:
    """Copy of a policy's published weights, in GPU memory or in Ray's object store, for all simulators."""

    def __init__(self, weights: models.Weights, buffers: GpuBufferPool, store: Callable[[PackedWeights], Any]) -> None:
        """Copy `weights`, which the learner may change afterwards. `store` puts packed weights into the object
        store."""
        tensors = {} if isinstance(weights, Path) else load_weight_tensors(weights)
        self._store, self._reference = store, None
        self.on_gpu = buffers.copy_to_shared_buffer(tensors) if are_on_one_gpu(tensors) else None
        self.stored_bytes = 0
        """Number of bytes that were put into the object store."""
        if self.on_gpu is None:
            self._store_packed_weights(pack_weights(weights if isinstance(weights, Path) else tensors.items()))

    def weights_payload_for(self, gpu_uuids: Collection[str]) -> Any:
        """Return the payload that a process with the GPUs `gpu_uuids` (UUIDs) passes to `receive_weights`: a GPU handle
        or an object reference."""
        if self.on_gpu and self.on_gpu.gpu in gpu_uuids:
            return self.on_gpu.handle()
        if self.on_gpu and self._reference is None:
            self._store_packed_weights(pack_weights(self.on_gpu.tensors()))
        return self._reference

    def _store_packed_weights(self, packed: PackedWeights) -> None:
        self._reference = self._store(packed)
        if not isinstance(packed, Path):
            self.stored_bytes = sum(tensor.data.nbytes for tensor in packed.values())


def fetch_and_load_weights(shard: SimulatorShard, command: LoadWeightsCommand) -> None:
    """Fetch the weights of a `LoadWeightsCommand` command, and load them into the engines of `shard`."""
    shard.execute(replace(command, weights=receive_weights(command.weights, partial(ray.get, timeout=_FETCH_S))))
    if torch.cuda.is_initialized():
        # The run may reuse its GPU buffer after this process replies, so the reads must have finished.
        torch.cuda.synchronize()


def receive_weights(payload: Any, fetch_packed: Callable[[Any], PackedWeights]) -> models.Weights:
    """Return the weights of a payload of `PublishedWeights`; `fetch_packed` reads an object reference from the object
    store."""
    if isinstance(payload, GpuWeightsHandle):
        return open_shared_weights(payload)
    packed = fetch_packed(payload)
    if isinstance(packed, Path):
        return packed
    tensors: list[tuple[str, torch.Tensor]] = []
    for name, tensor in packed.items():
        # Arrays from the object store are read-only, and torch does not support read-only tensors.
        data = torch.from_numpy(tensor.data.copy())
        tensors.append((name, data.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)))
    return tensors


def pack_weights(weights: models.Weights) -> PackedWeights:
    """Return `weights` as plain bytes by name; a folder stays a path."""
    if isinstance(weights, Path):
        return weights
    packed: dict[str, PackedTensor] = {}
    for name, tensor in load_weight_tensors(weights).items():
        plain = tensor.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy()  # viewed as bytes, because numpy has no bfloat16
        packed[name] = PackedTensor(data, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))
    return packed
