"""Objective of imitation: the cross entropy of completions, and a critic's value loss."""

from collections.abc import Sequence
from contextlib import nullcontext

from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow, imitation_rows
from marl.trainers.forward.token_outputs import TokenOutputRequest, TokenOutputs, token_outputs
from marl.trainers.imitation.options import ImitationOptions
from marl.trainers.imitation.selection import select_samples_to_imitate, without_duplicate_completions
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.policy_gradient.critic import ValueLoss

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/entropy | nats a token | entropy of the policy at the sampling temperature, whole vocabulary
policy/POLICY/kept | turns | selected for imitation (`sft`)
"""


class ImitationObjective(Objective):
    """Imitation loss of a token: -log p under the model's distribution at temperature 1.

    A sample with imitation targets has the cross entropy to the targets' distribution as its loss. A critic adds its
    value loss.
    """

    token_stat_names = ("entropy",)

    def __init__(self, settings: ImitationOptions, values: ValueLoss | None = None) -> None:
        self.settings, self._values = settings, values
        self._selected_count = 0
        if values:
            self.loss_term_names, self.needed_reading_fields, self.lr_scale = (
                values.loss_term_names,
                values.needed_reading_fields,
                values.lr_scale,
            )
            self.modules, self.supports_packing = values.modules, values.critic.supports_packing()

    def prepare_update(self, update_index: int) -> None:
        if self._values:
            self._values.prepare_update(update_index)

    def indivisible_sample_groups(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return each selected sample as a unit. Selection precedes minibatches, because it compares whole groups."""
        if self.settings.keep:
            samples = select_samples_to_imitate(samples, self.settings.keep)
        if not self.settings.duplicates:
            samples = without_duplicate_completions(samples)
        self._selected_count = len(samples)
        return [(sample,) for sample in samples]

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        """Return the training rows of `samples`.

        If `merge` is set, rows with equal tokens (and, with a critic, equal value targets) become one row.

        Raises:
            ValueError: as `ValueLoss.add_value_targets`.
        """
        if self._values is None:
            return imitation_rows(samples, self.settings.merge)
        return self._values.add_value_targets(
            imitation_rows(samples, self.settings.merge, self._values.value_targets_of_sample)
        )

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        with self._values.no_policy_gradient_in_warm_up() if self._values else nullcontext():
            outputs = token_outputs(model, batch, TokenOutputRequest(entropy=True))
        scale_B = row_loss_weights(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        loss_B = scale_B * batch.counts_B * masked_sum(-outputs.logprobs_BT, batch.loss_mask_BT)
        assert outputs.entropy_BT is not None
        terms = LossTerms(loss_B, {}, (outputs.entropy_BT,))
        return self._values.add_value_loss(terms, outputs, batch, totals) if self._values else terms

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the critic's values if `fields` asks for them."""
        return self._values.critic.read_values(outputs.states, batch) if self._values and "values" in fields else {}

    def finish_update(self, update_count: int, model: nn.Module, metrics: Metrics) -> Metrics:
        return {"kept": float(self._selected_count)}
