"""What a learner minimises, as seen by its loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row
from trainers.forward.token_outputs import Said
from trainers.losses.aggregation import Totals


@dataclass(frozen=True, slots=True)
class Terms:
    """One forward pass's share of the minibatch's loss, and what is worth knowing about it."""

    loss_B: Tensor
    """Each row's share; all rows' of all micro-batches add up to the loss."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Name -> [], this pass's share of a part of the loss: all shares' sum is reported."""
    stats: tuple[Tensor, ...] = ()
    """[B, T] each, of one sample, in the order of `Objective.stats`."""


class Objective:
    """Samples -> rows -> terms of the loss. Base of all; what it does not override is nothing."""

    needs: frozenset[str] = frozenset()
    """What must have been read of every sample."""
    parts: tuple[str, ...] = ()
    """Names of parts of the loss that are reported beside the whole."""
    stats: tuple[str, ...] = ()
    """Names of per-token numbers whose means are reported."""
    lr_scale: Mapping[str, float] = {}
    """Of `modules`: what their learning rate is multiplied by; 1 where nothing is said."""

    def together(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """What minibatches are dealt from: samples that are nothing to learn from apart, such as a pair. Those in none
        are left out of the update."""
        return [(sample,) for sample in samples]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """What is to be computed for one minibatch of samples."""
        raise NotImplementedError

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> Terms:
        """The loss of one forward pass; `totals` are the whole minibatch's."""
        raise NotImplementedError

    def read(self, spoken: Said, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Further fields of `Reading` among `wanted`, by name: [B, T], or [B] for what a turn has one of. `spoken` is
        what the policy says of the batch, with its states."""
        return {}

    def modules(self) -> Mapping[str, nn.Module]:
        """What learns beside the policy's model, with the same optimizer; saved with the learner's state."""
        return {}

    def start(self, update: int) -> None:
        """Called before each update, with the number of those done."""

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Called after each update with what it found; returns further metrics. `done` counts updates."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What is to survive a restart, `modules` aside."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""
