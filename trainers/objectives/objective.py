"""Base of objectives: the interface between a loss and the learner's loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row
from trainers.forward.token_outputs import TokenOutputs
from trainers.losses.aggregation import Totals


@dataclass(frozen=True, slots=True)
class LossTerms:
    """One forward pass's share of the minibatch's loss, and figures to report."""

    loss_B: Tensor
    """Each row's share; those of all micro-batches add up to the loss."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Name -> [], this pass's share of a part of the loss; the sum of all shares is reported."""
    stats: tuple[Tensor, ...] = ()
    """[B, T] each, for a single sample, in the order of `Objective.stats`."""
    tokens: tuple[Tensor, Tensor] | None = None
    """[B, T] each, without gradient: log-probabilities under the sampling distribution, and entropies."""


class Objective:
    """Samples -> rows -> terms of the loss. Base of all; methods that are not overridden do nothing."""

    needs: frozenset[str] = frozenset()
    """Fields of `Reading` that every sample must have."""
    parts: tuple[str, ...] = ()
    """Names of parts of the loss that are reported beside the whole."""
    stats: tuple[str, ...] = ()
    """Names of per-token numbers whose means are reported."""
    lr_scale: Mapping[str, float] = {}
    """Name among `modules` -> factor of its learning rate; 1 where there is none."""

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return samples in the units that minibatches are dealt from, such as pairs; others are not learned from."""
        return [(sample,) for sample in samples]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return the rows of one minibatch of samples."""
        raise NotImplementedError

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> LossTerms:
        """Return the loss of one forward pass; `totals` are the whole minibatch's."""
        raise NotImplementedError

    def read(self, outputs: TokenOutputs, batch: Batch, wanted: frozenset[str]) -> dict[str, Tensor]:
        """Return further `wanted` fields of `Reading` from the policy's outputs: [B, T], or [B] if one a turn."""
        return {}

    def modules(self) -> Mapping[str, nn.Module]:
        """Return modules that learn with the policy's optimizer; they are saved with the learner's state."""
        return {}

    def start(self, update: int) -> None:
        """Prepare an update; `update` counts those before it."""

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Return further metrics than the update's `metrics`; `done` counts updates, this one included."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, without that of `modules`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the state back."""
