"""Imitation: the cross entropy of completions, and a critic beside it."""

from collections.abc import Sequence
from contextlib import nullcontext

from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_weights
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row, imitation_rows
from marl.trainers.forward.token_outputs import OutputSpec, TokenOutputs, token_outputs
from marl.trainers.imitation.options import ImitationOptions
from marl.trainers.imitation.selection import distinct_completions, select_samples
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.policy_gradient.critic import ValueLoss


class ImitationObjective(Objective):
    """Loss of one token: -log p, under the model's own distribution at temperature 1; with a critic, its loss as well.

    A sample with targets is imitated by all of them, each by its share: the cross entropy to their distribution.
    """

    token_stat_names = ("entropy",)

    def __init__(self, settings: ImitationOptions, values: ValueLoss | None = None) -> None:
        self.settings, self._values = settings, values
        self._selected_count = 0
        if values:
            self.loss_term_names, self.needs, self.lr_scale = values.loss_term_names, values.needs, values.lr_scale
            self.modules, self.supports_packing = values.modules, values.critic.supports_packing()

    def before_update(self, update: int) -> None:
        if self._values:
            self._values.before_update(update)

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the selected samples one by one; selected from the whole step, before minibatches split groups."""
        if self.settings.keep:
            samples = select_samples(samples, self.settings.keep)
        if not self.settings.duplicates:
            samples = distinct_completions(samples)
        self._selected_count = len(samples)
        return [(sample,) for sample in samples]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of samples with equal tokens and, with a critic, equal value targets.

        Raises:
            ValueError: as `ValueLoss.add_value_targets`.
        """
        if self._values is None:
            return imitation_rows(samples, self.settings.merge)
        return self._values.add_value_targets(imitation_rows(samples, self.settings.merge, self._values.merge_key))

    def terms(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        with self._values.policy_gradient() if self._values else nullcontext():
            outputs = token_outputs(model, batch, OutputSpec(entropy=True))
        scale_B = row_weights(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        loss_B = scale_B * batch.counts_B * masked_sum(-outputs.logprobs_BT, batch.loss_mask_BT)
        assert outputs.entropy_BT is not None
        terms = LossTerms(loss_B, {}, (outputs.entropy_BT,))
        return self._values.add_value_loss(terms, outputs, batch, totals) if self._values else terms

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the critic's values if `fields` has them."""
        return self._values.critic.read(outputs.states, batch) if self._values and "values" in fields else {}

    def after_update(self, updates: int, model: nn.Module, metrics: Metrics) -> Metrics:
        return {"kept": float(self._selected_count)}
