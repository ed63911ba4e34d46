"""Groups of data-parallel processes over `torch.distributed`: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from marl.models.sharding import shard_weights
from marl.protocols import DataParallel

BUCKET_BYTES = 1 << 25
"""Maximum size of one message in bytes. Small messages avoid a second copy of all gradients."""


@dataclass(frozen=True, slots=True)
class ProcessGroupJoinSettings:
    """Settings with which one process joins its process group."""

    rank: int
    size: int
    address: str
    """Rendezvous address: `tcp://HOST:PORT` of rank 0, or `file:///PATH` of a new file on a shared disk."""
    data_parallel: DataParallel = "ddp"
    deadline_s: float = 600.0
    """Maximum wait for the other processes, in seconds."""


class TorchProcessGroup:
    """Implementation of `DataParallelGroup` with `torch.distributed`, created by `join_process_group`."""

    def __init__(self, member: ProcessGroupJoinSettings) -> None:
        self.rank, self.world_size, self.is_sharded = member.rank, member.size, member.data_parallel == "fsdp"
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._mesh: DeviceMesh | None = init_device_mesh(self._device, (self.world_size,)) if self.is_sharded else None

    def shard_weights(self, module: nn.Module) -> None:
        """Shard the weights of `module` in place if `is_sharded`. The names of its parameters do not change."""
        if self._mesh is not None:
            shard_weights(module, self._mesh)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each of `tensors` by its sum over all processes, in place."""
        buckets: list[list[Tensor]] = []
        size = 0
        for tensor in tensors:
            # All tensors of a bucket have the same dtype.
            if not buckets or tensor.dtype != buckets[-1][0].dtype or size + tensor.nbytes > BUCKET_BYTES:
                buckets.append([])
                size = 0
            buckets[-1].append(tensor)
            size += tensor.nbytes
        for bucket in buckets:
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, summed in zip(bucket, flat.split(list(map(torch.numel, bucket))), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def all_reduce_max(self, local_number: int) -> int:
        """Return the maximum of `local_number` over all processes."""
        maximum = torch.tensor(local_number, device=self._device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of ranks, on rank 0, and an empty list on other ranks.

        The values are sent as pickles.
        """
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []


@contextmanager
def join_process_group(membership: ProcessGroupJoinSettings) -> Iterator[TorchProcessGroup]:
    """Join a process group as `membership` while the body of the context runs.

    Raises:
        RuntimeError: if the other processes do not join, or do not take part in an operation, before the deadline.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    wait = timedelta(seconds=membership.deadline_s)
    dist.init_process_group(
        backend, init_method=membership.address, rank=membership.rank, world_size=membership.size, timeout=wait
    )
    try:
        yield TorchProcessGroup(membership)
    finally:
        dist.destroy_process_group()
