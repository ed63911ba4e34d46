"""Protocol of processes that teach one set of weights together, each from its share of every minibatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

DataParallel = Literal["ddp", "fsdp"]
"""Distribution of weights over data-parallel processes: `ddp`, whole in each; `fsdp`, a shard in each (FSDP2)."""


class Collective(Protocol):
    """Data-parallel processes of one learner, as one of them sees them.

    All have the same samples and deal the same rows. Whatever is called here is called by all of them in one order, and
    returns when all have called it.
    """

    @property
    def rank(self) -> int:
        """Return the number of this process, from 0. Rank 0 writes what is written once."""
        ...

    @property
    def size(self) -> int:
        """Return the number of processes."""
        ...

    @property
    def sharded(self) -> bool:
        """Return True if each process has a shard of the weights. Then all must make as many passes as one another."""
        ...

    def shard(self, module: nn.Module) -> None:
        """Leave a shard of the module's weights in this process, if weights are `sharded`; names stay the same."""
        ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        ...

    def most(self, number: int) -> int:
        """Return the greatest `number` of all processes."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank; nothing in other processes than rank 0. Values are pickled."""
        ...


class Alone:
    """One process, which has nobody to talk to: nothing is done, nothing is copied."""

    rank, size, sharded = 0, 1, False

    def shard(self, module: nn.Module) -> None:
        """Leave the module whole."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Leave the tensors as they are."""

    def most(self, number: int) -> int:
        """Return `number`."""
        return number

    def gather(self, value: Any) -> list[Any]:
        """Return `value` alone."""
        return [value]
