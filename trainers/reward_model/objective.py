"""Objective of reward models: Bradley & Terry 1952 on pairs, ORM on outcomes (2110.14168), PRM (2305.20050)."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from marl.core.types import Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, to_float32_or_wider
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import BatchRow, checked_token_values, imitation_rows
from marl.trainers.forward.model_inputs import hidden_states
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.preferences.pairs import (
    comparison_batch,
    comparison_groups,
    mean_reward_or_credit,
    rows_of_paired_turns,
)
from marl.trainers.reward_model.chat_text import ChatAnswerEncoder
from marl.trainers.reward_model.classifier import sequence_classifier_on_meta_device
from marl.trainers.reward_model.losses import bradley_terry, orm
from marl.trainers.reward_model.options import RewardModelOptions

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/accuracy | share | pairs in the right order (`dpo`, `reward_modeling`); with labels, turns on the
    right side of even odds
policy/POLICY/score | score | mean score (`reward_modeling`)
"""

_NEXT = 0
"""Placeholder id behind a row's last token, so that the state at the last token is computed. No model reads it."""


class RewardModelObjective(Objective):
    """Loss of scores, which a linear head computes at the last token of each turn.

    The metric `accuracy` is measured before each optimizer step: the share of pairs in the right order, or of labels
    predicted with a probability above one half.
    """

    ranks_by_reward = True
    loss_term_names = ("accuracy", "score")

    def __init__(self, settings: RewardModelOptions, model: Any, chat_text: ChatAnswerEncoder) -> None:
        # The call raises ValueError now, and not after training, if the model cannot be saved as a classifier.
        sequence_classifier_on_meta_device(model)
        self.settings, self._chat_text = settings, chat_text
        embeddings = model.get_output_embeddings().weight
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, bias=False, device=embeddings.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        self.modules = {"head": self.head}

    def indivisible_sample_groups(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the samples of each comparison group as one unit, or for objectives with labels single samples."""
        if self.settings.objective != "bradley_terry":
            return super().indivisible_sample_groups(samples)
        return [group.samples for group in comparison_groups(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[BatchRow]:
        """Return rows of turns in pairs with the scalar `worth`, or rows of all turns with the scalar `label`.

        `worth` is the turn's measure. `label` is the share of good turns among the merged turns of a row.
        """
        settings, by = self.settings, self.settings.ranking_measure
        rows: list[BatchRow] = []
        if settings.objective == "bradley_terry":
            for row in rows_of_paired_turns(samples, settings):
                rows.append(self._row_in_chat_format(row, worth=mean_reward_or_credit(row.samples, by)))
            return rows
        if settings.level == "segment":
            segmented = [sample for sample in samples if sample.segments]
            return list(map(self._row_with_segment_labels, imitation_rows(segmented, merge_equal=False)))
        for row in imitation_rows(samples, merge_equal=True):
            label = fmean(mean_reward_or_credit((sample,), by) >= settings.threshold for sample in row.samples)
            rows.append(self._row_in_chat_format(row, label=label))
        return rows

    def _row_in_chat_format(self, row: BatchRow, **scalars: float) -> BatchRow:
        """Return `row` with its answer in the chat template's tokens, of which the last one alone has a score."""
        token_ids = self._chat_text(row.samples[0])
        loss_mask = (*(False,) * len(token_ids), True)
        return replace(row, token_ids=(*token_ids, _NEXT), loss_mask=loss_mask, scalars={**row.scalars, **scalars})

    def _row_with_segment_labels(self, row: BatchRow) -> BatchRow:
        """Return the row of one sample in the chat template's tokens, with a label behind the end of each segment.

        The column `labels` is read at the tokens of the loss mask; the scalar `segments` is their number.
        """
        sample, settings = row.samples[0], self.settings
        advantage = sample.advantage
        # At the level of segments, targets and credit are equal at all tokens of a segment.
        values = advantage.returns if len(advantage.returns) == len(sample.token_ids) else advantage.tokens
        values = checked_token_values(sample, values, "advantage.tokens")
        token_ids, ends = self._chat_text.with_last_tokens_of_segments(sample)
        labels = dict.fromkeys(range(len(token_ids) + 1), 0.0)
        for last, end in zip(sample.segments, ends, strict=True):
            value = values[last]
            # The state at a token is the one from which the next token is predicted.
            hard = float(value >= settings.threshold)
            labels[end + 1] = min(max(value, 0.0), 1.0) if settings.labels == "soft" else hard
        scored = {end + 1 for end in ends}
        return replace(
            row,
            token_ids=(*token_ids, _NEXT),
            loss_mask=tuple([index in scored for index in labels]),
            columns={"labels": tuple(labels.values())},
            scalars={**row.scalars, "segments": float(len(scored))},
        )

    def loss_unit_count(self, totals: MinibatchTotals) -> float:
        """Return the number of pairs, segments or samples of a minibatch, whose losses are averaged."""
        sums = totals.scalar_sums
        return sums.get("pairs", sums.get("segments", totals.samples))

    def score_rows(self, model: Any, batch: Batch) -> Tensor:
        """Return [B], the score of each row, computed at its last token."""
        scores_N = self.head(to_float32_or_wider(hidden_states(model, batch.inputs).tokens_NH)).squeeze(-1)
        return masked_sum(batch.scatter_token_values(scores_N), batch.loss_mask_BT)

    def forward_loss(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the loss of the pairs or labels of one forward pass, as a share of the mean over the minibatch."""
        if "labels" in batch.columns:
            return self._segment_loss(model, batch, self.loss_unit_count(totals))
        scores_B = self.score_rows(model, batch)
        if "pairs" in batch.scalars:
            entries = comparison_batch(batch)
            scores_S, worth_S = (
                entries.mean_row_value_per_entry(scores_B),
                entries.mean_row_value_per_entry(batch.scalars["worth"]),
            )
            better_U, worse_U = scores_S[entries.better_U], scores_S[entries.worse_U]
            margin_U = self.settings.spread * (worth_S[entries.better_U] - worth_S[entries.worse_U])
            loss_U = bradley_terry(better_U, worse_U, margin_U, self.settings.centre)
            loss_B, right_count = entries.divide_pair_losses_among_rows(loss_U), (better_U > worse_U).sum()
        else:
            labels_B = batch.scalars["label"]
            right_count = (batch.counts_B * torch.where(scores_B > 0, labels_B, 1 - labels_B)).sum()
            loss_B = batch.counts_B * orm(scores_B, labels_B)
        count = self.loss_unit_count(totals)
        mean = (scores_B.detach() * batch.counts_B).sum() / totals.samples
        return LossTerms(loss_B / count, {"accuracy": right_count / count, "score": mean})

    def _segment_loss(self, model: nn.Module, batch: Batch, count: float) -> LossTerms:
        """Return the loss of segments' labels, as a share of the mean over the `count` segments of the minibatch."""
        scores_N = self.head(to_float32_or_wider(hidden_states(model, batch.inputs).tokens_NH)).squeeze(-1)
        scores_BT, labels_BT = batch.scatter_token_values(scores_N), batch.columns["labels"]
        right_BT = torch.where(scores_BT > 0, labels_BT, 1 - labels_BT)
        loss_B = masked_sum(orm(scores_BT, labels_BT), batch.loss_mask_BT) / count
        right_B, sums_B = (masked_sum(values, batch.loss_mask_BT) for values in (right_BT, scores_BT.detach()))
        return LossTerms(loss_B, {"accuracy": right_B.sum() / count, "score": sums_B.sum() / count})
