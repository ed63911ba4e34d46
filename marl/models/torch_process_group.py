"""Data-parallel processes over `torch.distributed`: gloo between CPUs, NCCL between GPUs."""

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

from marl.models.sharding import shard
from marl.protocols import DataParallel

BUCKET_BYTES = 1 << 25
"""Maximum size of one message [bytes]; small messages avoid a second copy of all gradients."""


@dataclass(frozen=True, slots=True)
class ProcessGroupMember:
    """Rank and address with which a process joins its group."""

    rank: int
    size: int
    address: str
    """Rendezvous address: `tcp://HOST:PORT` of rank 0, or `file:///PATH` of a new file on a shared disk."""
    data_parallel: DataParallel = "ddp"
    deadline_s: float = 600.0
    """Maximum wait for the other processes [seconds]."""


class TorchProcessGroup:
    """The `DataParallelGroup` of this process, which `join_process_group` creates."""

    def __init__(self, member: ProcessGroupMember) -> None:
        self.rank, self.world_size, self.is_sharded = member.rank, member.size, member.data_parallel == "fsdp"
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._mesh: DeviceMesh | None = init_device_mesh(self._device, (self.world_size,)) if self.is_sharded else None

    def shard(self, module: nn.Module) -> None:
        """Shard the module's weights in place if `is_sharded`; the names of parameters stay the same."""
        if self._mesh is not None:
            shard(module, self._mesh)

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum of `number` over all processes."""
        maximum = torch.tensor(number, device=self._device)
        dist.all_reduce(maximum, dist.ReduceOp.MAX)
        return int(maximum)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank on rank 0, and an empty list elsewhere. Values are pickled."""
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []


@contextmanager
def join_process_group(member: ProcessGroupMember) -> Iterator[TorchProcessGroup]:
    """Join the process group of `member` for the duration of the context.

    Raises:
        RuntimeError: if the other processes do not join, or do not take part in an operation, before the deadline.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    wait = timedelta(seconds=member.deadline_s)
    dist.init_process_group(backend, init_method=member.address, rank=member.rank, world_size=member.size, timeout=wait)
    try:
        yield TorchProcessGroup(member)
    finally:
        dist.destroy_process_group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in order, in buckets of one dtype and at most `BUCKET_BYTES`, or of one larger tensor."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
