"""Supervised fine-tuning: imitation of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.pairs import distinct, select_samples
from trainers.batching.rows import Row, plain_rows
from trainers.forward.token_outputs import OutputSpec, token_outputs
from trainers.losses.aggregation import Totals, masked_sum, row_scale
from trainers.objectives.objective import LossTerms, Objective

if TYPE_CHECKING:
    from trainers.settings.preferences import Sft


class Imitation(Objective):
    """Loss of one token: -log p, under the model's own distribution at temperature 1."""

    stats = ("entropy",)

    def __init__(self, settings: Sft) -> None:
        self.settings = settings
        self._selected = 0

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the selected samples, each alone; selected from the whole step, before minibatches split groups."""
        selection = self.settings.keep
        chosen = select_samples(samples, selection) if selection else samples
        chosen = chosen if self.settings.duplicates else distinct(chosen)
        self._selected = len(chosen)
        return [(sample,) for sample in chosen]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        return plain_rows(samples, self.settings.merge)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> LossTerms:
        outputs = token_outputs(model, batch, OutputSpec(entropy=True))
        scale_B = row_scale(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        loss_B = scale_B * batch.counts_B * masked_sum(-outputs.logprobs_BT, batch.loss_mask_BT)
        assert outputs.entropy_BT is not None
        return LossTerms(loss_B, {}, (outputs.entropy_BT,))

    def finish(self, done: int, model: nn.Module, metrics: Metrics) -> Metrics:
        return {"kept": float(self._selected)}
