"""Base class of objectives: the interface between a loss and the learner's update loop."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow
from marl.trainers.forward.token_outputs import TokenOutputs


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Loss of one forward pass, as a share of the minibatch's loss, and figures to report."""

    loss_B: Tensor
    """[B], each row's share of the minibatch's loss; the shares of all micro-batches add up to that loss."""
    loss_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """Name of a reported term -> [], the share of this forward pass. The sum over all passes is reported."""
    token_stats: tuple[Tensor, ...] = ()
    """[B, T] each: per-token statistics of one sample of the row, in the order of `Objective.token_stat_names`."""
    token_figures: tuple[Tensor, Tensor] | None = None
    """Log-probabilities under the sampling distribution, and entropies: [B, T] each, without gradient."""


class Objective:
    """Base class of objectives, which turn samples into rows, and rows into a loss. Hooks do nothing by default."""

    needed_reading_fields: frozenset[str] = frozenset()
    """Fields of `Reading` that the learner must read for every sample before an update."""
    loss_term_names: tuple[str, ...] = ()
    """Names of the terms in `LossTerms.loss_terms`, reported as metrics."""
    token_stat_names: tuple[str, ...] = ()
    """Names of the per-token statistics in `LossTerms.token_stats`, whose means are reported as metrics."""
    step_limit: tuple[str, float] | None = None
    """Name in `token_stat_names` and limit: an update ends before an optimizer step, except the first, in whose
    forward passes the mean of this statistic exceeds the limit. None: an update takes all its steps."""
    modules: Mapping[str, nn.Module] = {}
    """Further trained modules by name, such as a critic. The policy's optimizer steps them."""
    lr_scale: Mapping[str, float] = {}
    """Module name -> factor of the policy's learning rate (default: 1)."""
    ranks_by_reward: bool = False
    """True if rewards or credit select, rank or label samples. Comparisons hide a number that is not finite, so the
    learner checks them before an update."""
    supports_packing: bool = True
    """False if a module of the objective cannot read packed sequences; each row then gets its own padded sequence."""

    def indivisible_sample_groups(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return `samples` as units, which minibatches never split, such as pairs. Samples in no unit are not used."""
        return [(sample,) for sample in samples]

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        """Return the rows of a minibatch's samples."""
        raise NotImplementedError

    def forward_key(self, row: BatchRow) -> Hashable:
        """Return a key of the row. Rows with different keys are never computed in one forward pass."""
        return None

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the loss of one forward pass. `totals` are counts over the whole minibatch, the loss's
        denominators."""
        raise NotImplementedError

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the values of further `fields` of `Reading`: [B, T] per token, or [B] per turn."""
        return {}

    def prepare_update(self, update_index: int) -> None:
        """Prepare the update with index `update_index` (from 0)."""

    def finish_update(self, update_count: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """Return further metrics after an update. `update_count` is the number of updates so far, this one included."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the objective's state for a checkpoint, without the weights of `modules`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore an objective's state returned by `state_dict`."""
