"""Objective of the learner `distillation`: the divergence from a teacher, at temperature 1."""

from collections.abc import Hashable, Sequence

from torch import nn

from marl.core.types import Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, row_loss_weights
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow, imitation_rows
from marl.trainers.distillation.options import DistillationOptions
from marl.trainers.distillation.teachers import TEACHER, Teachers
from marl.trainers.forward.token_outputs import TokenOutputRequest, token_outputs
from marl.trainers.objective import LossTerms, Objective

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/entropy | nats a token | entropy of the policy at the sampling temperature, whole vocabulary
"""


class DistillationObjective(Objective):
    """Loss of a token: the divergence of the policy's next-token distribution from its teacher's."""

    token_stat_names = ("entropy", "kl_teacher")

    def __init__(self, settings: DistillationOptions, teachers: Teachers) -> None:
        self._settings, self._teachers = settings, teachers
        self._request = TokenOutputRequest(entropy=True, divergences={TEACHER: teachers.divergence})
        self.supports_packing = teachers.support_packing

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        return self._teachers.add_index(imitation_rows(samples, self._settings.merge, self._teachers.index_of_sample))

    def forward_key(self, row: BatchRow) -> Hashable:
        return row.scalars[TEACHER]

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        outputs = token_outputs(model, batch, self._request, {TEACHER: self._teachers.model_of_batch(batch)})
        assert outputs.entropy_BT is not None
        assert outputs.anchors is not None
        divergence_BT = outputs.anchors[TEACHER]
        scale_B = row_loss_weights(self._settings.aggregation, batch.lengths_B, totals, self._settings.norm)
        loss_B = scale_B * batch.counts_B * masked_sum(divergence_BT, batch.loss_mask_BT)
        figures = outputs.logprobs_BT.detach(), outputs.entropy_BT.detach()
        return LossTerms(loss_B, {}, (outputs.entropy_BT, divergence_BT), figures)
