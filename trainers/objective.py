"""Base of objectives: the interface between a loss and the learner's loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row
from marl.trainers.forward.token_outputs import TokenOutputs


@dataclass(frozen=True, slots=True)
class LossTerms:
    """One forward pass's share of the minibatch's loss, and figures to report."""

    loss_B: Tensor
    """Each row's share; the shares of all micro-batches add up to the loss."""
    loss_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """Name -> [], this pass's share of a term of the loss; the sum of all shares is reported."""
    token_stats: tuple[Tensor, ...] = ()
    """[B, T] each, for a single sample, in the order of `Objective.token_stat_names`."""
    token_figures: tuple[Tensor, Tensor] | None = None
    """[B, T] each, without gradient: log-probabilities under the sampling distribution, and entropies."""


class Objective:
    """Samples -> rows -> terms of the loss. Base of all objectives; hooks that are not overridden do nothing."""

    needs: frozenset[str] = frozenset()
    """Fields of `Reading` that every sample must have."""
    loss_term_names: tuple[str, ...] = ()
    """Names of terms of the loss that are reported beside the loss itself."""
    token_stat_names: tuple[str, ...] = ()
    """Names of per-token numbers whose means are reported."""
    modules: Mapping[str, nn.Module] = {}
    """Modules that learn with the policy's optimizer; they are saved with the learner's state."""
    lr_scale: Mapping[str, float] = {}
    """Factor of the learning rate by name of a module (default: 1)."""
    supports_packing: bool = True
    """False if a module of the objective cannot read packed sequences; every text is then padded."""

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return samples in the units dealt to minibatches, such as pairs; samples in no unit are not learned from."""
        return [(sample,) for sample in samples]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return the rows of one minibatch of samples."""
        raise NotImplementedError

    def terms(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the loss of one forward pass; `totals` are the whole minibatch's."""
        raise NotImplementedError

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return further `fields` of `Reading` from the policy's outputs: [B, T] of tokens, or [B] of turns."""
        return {}

    def before_update(self, update: int) -> None:
        """Prepare update number `update` (counted from 0)."""

    def after_update(self, updates: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Return metrics beside the update's `metrics`; `updates` counts all updates so far, this one included."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, without that of `modules`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict`."""
