"""Supervised fine-tuning: imitation of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.rows import Row, imitated_rows
from trainers.batching.selection import distinct, kept
from trainers.forward.token_outputs import Asked, said
from trainers.losses.aggregation import Totals, masked_sum, row_scale
from trainers.objectives.objective import Objective, Terms

if TYPE_CHECKING:
    from trainers.settings import Sft


class Imitation(Objective):
    """Loss of one token: -log p, under the model's own distribution at temperature 1."""

    stats = ("entropy",)

    def __init__(self, settings: Sft) -> None:
        self.settings = settings
        self._kept = 0

    def together(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Those worth imitating, each alone: chosen from the whole step, before minibatches tear groups apart."""
        keep = self.settings.keep
        chosen = kept(samples, keep) if keep else samples
        chosen = chosen if self.settings.duplicates else distinct(chosen)
        self._kept = len(chosen)
        return [(sample,) for sample in chosen]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Samples with equal tokens become one row."""
        return imitated_rows(samples, self.settings.merge)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> Terms:
        """The loss of every token of one forward pass."""
        spoken = said(model, batch, Asked(entropy=True))
        scale_B = row_scale(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        loss_B = scale_B * batch.counts_B * masked_sum(-spoken.logprobs_BT, batch.counted_BT)
        assert spoken.entropy_BT is not None
        return Terms(loss_B, {}, (spoken.entropy_BT,))

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        """How many samples were imitated."""
        return {"kept": float(self._kept)}
