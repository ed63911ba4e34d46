"""What a learner minimises, as seen by its loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from marl.types import Sample
from trainers.batches import Batch
from trainers.rows import Row


@dataclass(frozen=True, slots=True)
class Terms:
    """One forward pass's loss per token, and what is worth knowing about each token."""

    policy_BT: Tensor
    """Already summed over merged samples."""
    penalty_BT: Tensor | None
    """Of one sample; to be multiplied by how many were merged."""
    stats: tuple[Tensor, ...]
    """[B, T] each, of one sample, in the order of `Objective.stats`."""


class Objective(Protocol):
    """Samples -> rows -> terms of the loss."""

    needs: frozenset[str]
    stats: tuple[str, ...]
    """Names of per-token numbers whose means are reported."""

    def rows(self, samples: Sequence[Sample]) -> list[Row]: ...
    def terms(self, model: nn.Module, batch: Batch, update: int) -> Terms: ...
    def finish(self, done: int, model: nn.Module) -> None:
        """Called after each update; `done` counts them."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
