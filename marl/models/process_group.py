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

BUCKET = 1 << 25
"""Bytes that are sent at once, so that a copy of all gradients is never needed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Place of a process in a group."""

    rank: int
    size: int
    address: str
    """Meeting place: `tcp://HOST:PORT`, where rank 0 listens, or `file:///PATH` of a new file on a disk of all."""
    way: DataParallel = "ddp"
    deadline_s: float = 600.0
    """Longest wait for the other processes, in seconds."""


class ProcessGroup:
    """The `Collective` of processes that have joined; see `joined`."""

    def __init__(self, member: Membership) -> None:
        self.rank, self.size, self.sharded = member.rank, member.size, member.way == "fsdp"
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._mesh: DeviceMesh | None = init_device_mesh(self._device, (self.size,)) if self.sharded else None

    def shard(self, module: nn.Module) -> None:
        """Leave a shard of the module's weights in this process, if weights are `sharded`; names stay the same."""
        if self._mesh is not None:
            shard(module, self._mesh)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, summed in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def most(self, number: int) -> int:
        """Return the greatest `number` of all processes."""
        greatest = torch.tensor(number, device=self._device)
        dist.all_reduce(greatest, dist.ReduceOp.MAX)
        return int(greatest)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank; nothing in other processes than rank 0. Values are pickled."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []


@contextmanager
def joined(member: Membership) -> Iterator[ProcessGroup]:
    """Return a context in which this process is a member of its group.

    Raises:
        RuntimeError: if the others do not join before the deadline; or later, whenever one is waited for in vain.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    wait = timedelta(seconds=member.deadline_s)
    dist.init_process_group(backend, init_method=member.address, rank=member.rank, world_size=member.size, timeout=wait)
    try:
        yield ProcessGroup(member)
    finally:
        dist.destroy_process_group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in order, in buckets of one type and about as many bytes as are sent at once."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or size + tensor.nbytes > BUCKET):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
