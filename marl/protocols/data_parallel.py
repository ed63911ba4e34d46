"""Protocol of data-parallel processes, which train one set of weights on shards of every minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

DataParallel = Literal["ddp", "fsdp"]
"""Strategy of data parallelism: with `ddp` each process has all weights, with `fsdp` one shard of them (FSDP2)."""


class DataParallelGroup(Protocol):
    """Group of the data-parallel processes of one learner, seen from one of these processes.

    All processes have the same samples and distribute the same rows. The methods are collective operations: all
    processes must call them in the same order, and a call returns once every process has made it.
    """

    @property
    def rank(self) -> int:
        """Return the rank of this process, from 0. Only rank 0 writes files."""
        ...

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Return True if each process has a shard of the weights, so that all must run equally many forward passes."""
        ...

    def shard(self, module: nn.Module) -> None:
        """Reduce `module` to this process's shard of its weights if `is_sharded`. Parameter names stay the same."""
        ...

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor in place by its sum over all processes."""
        ...

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum of `number` over all processes."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank on rank 0, and [] on other ranks. Values must be picklable."""
        ...


class SingleProcess:
    """Group of a single process: collective operations do nothing and copy nothing."""

    rank, world_size, is_sharded = 0, 1, False

    def shard(self, module: nn.Module) -> None:
        """Leave all weights in `module`."""

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Leave `tensors` unchanged."""

    def all_reduce_max(self, number: int) -> int:
        """Return `number`."""
        return number

    def gather(self, value: Any) -> list[Any]:
        """Return [value]."""
        return [value]
