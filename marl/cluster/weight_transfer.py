"""Transfer of published weights to other processes, as bytes in Ray's object store: one copy on each machine.

Processes on the learner's GPU read the weights from GPU memory instead (`marl.cluster.gpu_weights`), and idle processes
may receive them by broadcast (`marl.cluster.weight_broadcast`).
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from marl.cluster.broadcast_group import BroadcastHandle, BroadcastReceiver
from marl.cluster.gpu_weights import GpuWeightsHandle, WeightBufferPool, common_device, open_shared_weights
from marl.cluster.simulator_slot import SimulatorProcessKey
from marl.models.weights import load_weight_tensors
from marl.protocols import models
from marl.rollout.shards import LoadWeightsCommand, SimulatorShard

_SMALL_BYTES = 2**20
"""Size in bytes from which a tensor is packed into a buffer of its own."""
_FETCH_S = 600.0
"""Maximum time to fetch new weights from the object store, in seconds."""


PackedRegion = tuple[int, int, int, tuple[int, ...]]
"""Position of a tensor's numbers in `PackedTensors`: index of the buffer, start, stop; and the tensor's shape. A plain
tuple, because Ray pickles hundreds of objects of a class in milliseconds, while play waits."""


class PackedTensors(NamedTuple):
    """Tensors as plain bytes, of which all processes of a machine share one copy in Ray's object store.

    Small tensors of one dtype share a buffer, since each buffer takes Ray longer than a small tensor's bytes do.
    """

    buffers: list[tuple[NDArray[np.uint8], str]]
    """Bytes of each buffer, and the dtype of its numbers."""
    regions: dict[str, PackedRegion]
    """Name of each tensor -> its position."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of all buffers."""
        return sum(data.nbytes for data, _ in self.buffers)


PackedWeights = PackedTensors | Path
"""Packed weights, or a folder on a disk that every machine sees."""


class PublishedWeights:
    """Copy of a policy's published weights, in a buffer or in Ray's object store, for all simulators."""

    def __init__(
        self,
        weights: models.Weights,
        buffers: WeightBufferPool,
        store: Callable[[PackedWeights], Any],
        is_broadcast: bool = False,
    ) -> None:
        """Copy `weights`, which the learner may change afterwards. `store` puts packed weights into the object store.

        Weights on a GPU, and with `is_broadcast` also those in main memory, are copied to a buffer, and are stored only
        for the first process that needs them from the object store.
        """
        tensors = {} if isinstance(weights, Path) else load_weight_tensors(weights)
        device = common_device(tensors)
        self._store, self._reference = store, None
        self.copy = buffers.copy_to_buffer(tensors) if device and (is_broadcast or device.type == "cuda") else None
        self.broadcast: asyncio.Task[frozenset[SimulatorProcessKey]] | None = None
        """Broadcast of the weights, with the keys of the processes that received them. None: there is no broadcast."""
        self.stored_bytes = 0
        """Number of bytes that were put into the object store."""
        if self.copy is None:
            self._store_packed_weights(weights if isinstance(weights, Path) else pack_tensors(tensors))

    def weights_payload_for(self, gpu_uuids: Collection[str]) -> Any:
        """Return the payload that a process with the GPUs `gpu_uuids` (UUIDs) passes to `receive_weights`: a GPU handle
        or an object reference."""
        if self.copy and self.copy.gpu in gpu_uuids:
            return self.copy.handle()
        if self.copy and self._reference is None:
            self._store_packed_weights(pack_tensors(dict(self.copy.tensors())))
        return self._reference

    def _store_packed_weights(self, packed: PackedWeights) -> None:
        self._reference = self._store(packed)
        if not isinstance(packed, Path):
            self.stored_bytes = packed.nbytes


def fetch_and_load_weights(shard: SimulatorShard, command: LoadWeightsCommand, broadcasts: BroadcastReceiver) -> None:
    """Fetch the weights of a `LoadWeightsCommand` command, and load them into the engines of `shard`."""
    payload = command.weights
    if isinstance(payload, BroadcastHandle):
        weights = broadcasts.take(payload)
    else:
        weights = receive_weights(payload, partial(ray.get, timeout=_FETCH_S))
    shard.execute(replace(command, weights=weights))
    if torch.cuda.is_initialized():
        # The run may reuse its GPU buffer after this process replies, so the reads must have finished.
        torch.cuda.synchronize()


def receive_weights(payload: Any, fetch_packed: Callable[[Any], PackedWeights]) -> models.Weights:
    """Return the weights of a payload of `PublishedWeights`; `fetch_packed` reads an object reference from the object
    store."""
    if isinstance(payload, GpuWeightsHandle):
        return open_shared_weights(payload)
    packed = fetch_packed(payload)
    return packed if isinstance(packed, Path) else list(unpack_tensors(packed).items())


def pack_tensors(tensors: Mapping[str, torch.Tensor]) -> PackedTensors:
    """Return `tensors` as plain bytes, in main memory."""
    groups: list[list[torch.Tensor]] = []
    group_of_dtype: dict[torch.dtype, int] = {}
    regions: dict[str, PackedRegion] = {}
    sizes: list[int] = []
    for name, tensor in tensors.items():
        # A tensor that is not small has its own group, so that its bytes are not copied here.
        own = tensor.nbytes >= _SMALL_BYTES
        group = len(groups) if own else group_of_dtype.setdefault(tensor.dtype, len(groups))
        if group == len(groups):
            groups.append([])
            sizes.append(0)
        groups[group].append(tensor.reshape(-1))
        regions[name] = (group, sizes[group], sizes[group] + tensor.numel(), tuple(tensor.shape))
        sizes[group] += tensor.numel()
    buffers: list[tuple[NDArray[np.uint8], str]] = []
    for members in groups:
        flat = (members[0] if len(members) == 1 else torch.cat(members)).detach().cpu()
        # The bytes are viewed, because numpy has no bfloat16.
        buffers.append((flat.view(torch.uint8).numpy(), str(flat.dtype).removeprefix("torch.")))
    return PackedTensors(buffers, regions)


def unpack_tensors(packed: PackedTensors) -> dict[str, torch.Tensor]:
    """Return the tensors of `packed` by name, as views of its buffers. Views of the object store must not be changed:
    other processes read the same memory."""
    flats: list[torch.Tensor] = []
    with warnings.catch_warnings():
        # Torch warns that it knows no read-only tensors; readers of these views only copy from them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for data, dtype in packed.buffers:
            flats.append(torch.from_numpy(data).view(getattr(torch, dtype)))
    tensors: dict[str, torch.Tensor] = {}
    for name, (buffer, start, stop, shape) in packed.regions.items():
        tensors[name] = flats[buffer][start:stop].view(shape)
    return tensors
