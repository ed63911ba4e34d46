"""Protocol of data-parallel processes, which train the same weights on shards of every minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

DataParallel = Literal["ddp", "fsdp"]
"""Strategy of data parallelism. `ddp`: each process has all weights. `fsdp`: each has one shard of them (FSDP2)."""


class DataParallelGroup(Protocol):
    """Group of one learner's data-parallel processes, as used by one of these processes.

    All processes have the same samples and distribute the same rows among themselves. The methods are collective
    operations: all processes call them in the same order, and a call returns after every process has made it.
    """

    rank: int
    """Rank of this process, from 0. Only rank 0 writes files."""
    world_size: int
    """Number of processes in the group."""
    is_sharded: bool
    """True if each process has one shard of the weights. All processes must then run the same forward passes."""

    def shard_weights(self, module: nn.Module) -> None:
        """Keep only this process's shard of the weights in `module` if `is_sharded`. Parameter names do not change."""
        ...

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor in place by its sum over all processes."""
        ...

    def all_reduce_max(self, local_number: int) -> int:
        """Return the maximum of `local_number` over all processes."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank on rank 0, and [] on other ranks. Values must be picklable."""
        ...


class SingleProcessGroup:
    """Data-parallel group with a single process, whose collective operations change nothing."""

    rank, world_size, is_sharded = 0, 1, False

    def shard_weights(self, module: nn.Module) -> None: ...
    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None: ...
    def all_reduce_max(self, local_number: int) -> int:
        return local_number

    def gather(self, value: Any) -> list[Any]:
        return [value]
