"""Objective of imitation: the cross entropy of completions, and a critic's value loss."""

from collections.abc import Hashable, Sequence
from contextlib import nullcontext

from torch import Tensor, nn

from marl.core.types import Metrics, Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow, imitation_rows
from marl.trainers.distillation.teachers import TEACHER, Teachers
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
    value loss, and a teacher (`distill`) its divergence times a coefficient.
    """

    def __init__(
        self, settings: ImitationOptions, values: ValueLoss | None = None, teachers: Teachers | None = None
    ) -> None:
        self.settings, self._values, self._teachers = settings, values, teachers
        self._update = self._selected_count = 0
        self.ranks_by_reward = settings.keep is not None
        self._request = TokenOutputRequest(entropy=True)
        self.token_stat_names = ("entropy",)
        if teachers:
            self._request = TokenOutputRequest(entropy=True, divergences={TEACHER: teachers.divergence})
            self.token_stat_names, self.supports_packing = ("entropy", "kl_teacher"), teachers.support_packing
        if values:
            self.loss_term_names, self.needed_reading_fields, self.lr_scale = (
                values.loss_term_names,
                values.needed_reading_fields,
                values.lr_scale,
            )
            self.modules = values.modules
            self.supports_packing = self.supports_packing and values.critic.supports_packing()

    def prepare_update(self, update_index: int) -> None:
        self._update = update_index
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
        rows = imitation_rows(samples, self.settings.merge, self._merge_key)
        if self._teachers:
            rows = self._teachers.add_index(rows)
        return self._values.add_value_targets(rows) if self._values else rows

    def forward_key(self, row: BatchRow) -> Hashable:
        """Return the index of the row's teacher; equal for all rows without teachers."""
        return row.scalars.get(TEACHER)

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        with self._values.no_policy_gradient_in_warm_up() if self._values else nullcontext():
            outputs = token_outputs(model, batch, self._request, self._teacher_models(batch))
        scale_B = row_loss_weights(self.settings.aggregation, batch.lengths_B, totals, self.settings.norm)
        assert outputs.entropy_BT is not None
        loss_BT = -outputs.logprobs_BT
        stats = [outputs.entropy_BT]
        if self._teachers and outputs.anchors:
            stats.append(outputs.anchors[TEACHER])
            loss_BT = loss_BT + self._teachers.coefficient(self._update) * outputs.anchors[TEACHER]
        loss_B = scale_B * batch.counts_B * masked_sum(loss_BT, batch.loss_mask_BT)
        terms = LossTerms(loss_B, {}, tuple(stats))
        return self._values.add_value_loss(terms, outputs, batch, totals) if self._values else terms

    def _merge_key(self, sample: Sample) -> Hashable:
        """Return a key that is equal for samples with the same value targets and the same teacher."""
        values = self._values.value_targets_of_sample(sample) if self._values else None
        return values, self._teachers.index_of_sample(sample) if self._teachers else 0

    def _teacher_models(self, batch: Batch) -> dict[str, nn.Module]:
        return {TEACHER: self._teachers.model_of_batch(batch)} if self._teachers else {}

    def read(self, outputs: TokenOutputs, batch: Batch, fields: frozenset[str]) -> dict[str, Tensor]:
        """Return the critic's values if `fields` asks for them."""
        return self._values.critic.read_values(outputs.states, batch) if self._values and "values" in fields else {}

    def finish_update(self, update_count: int, model: nn.Module, metrics: Metrics) -> Metrics:
        return {"kept": float(self._selected_count)}
