"""Objective of reward models: Bradley & Terry 1952 on pairs, outcomes (2110.14168) and steps (2305.20050)."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from marl.core.types import Sample
from marl.trainers.batching.aggregation import MinibatchTotals, masked_sum, to_float32
from marl.trainers.batching.batches import Batch
from marl.trainers.batching.rows import Row, imitation_rows
from marl.trainers.forward.model_inputs import hidden_states
from marl.trainers.objective import LossTerms, Objective
from marl.trainers.preferences.pairs import comparison_batch, comparison_groups, mean_measure, paired_rows
from marl.trainers.reward_model.chat_text import ChatTextEncoder
from marl.trainers.reward_model.classifier import empty_classifier
from marl.trainers.reward_model.losses import bradley_terry, orm
from marl.trainers.reward_model.options import RewardModelOptions

_NEXT = 0
"""Placeholder for the token after the last, which no model reads: the state before it is the one at the last token."""


class RewardModelObjective(Objective):
    """A score at the last token of each turn.

    `accuracy` is measured before each optimizer step: of pairs, the share in the right order; of labels, the share on
    the right side of even odds.
    """

    loss_term_names = ("accuracy", "score")

    def __init__(self, settings: RewardModelOptions, model: Any, chat_text: ChatTextEncoder) -> None:
        # Raises before anything is learned if no such classifier can be saved.
        empty_classifier(model)
        self.settings, self._chat_text = settings, chat_text
        embeddings = model.get_output_embeddings().weight
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, bias=False, device=embeddings.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        self.modules = {"head": self.head}

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return the samples of each comparison group, or with labels the samples one by one."""
        if self.settings.objective != "bradley_terry":
            return super().sample_units(samples)
        return [group.samples for group in comparison_groups(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of turns in pairs, with the scalar `worth`; or of all turns, with the scalar `label`.

        `worth` is the measure of the turn. `label` is the share of good turns among the identical turns of a row.
        """
        settings, by = self.settings, self.settings.measure
        rows: list[Row] = []
        if settings.objective == "bradley_terry":
            for row in paired_rows(samples, settings):
                rows.append(self._chat_row(row, worth=mean_measure(row.samples, by)))
            return rows
        for row in imitation_rows(samples, merge=True):
            label = fmean(mean_measure((sample,), by) >= settings.threshold for sample in row.samples)
            rows.append(self._chat_row(row, label=label))
        return rows

    def _chat_row(self, row: Row, **scalars: float) -> Row:
        """Return `row` with the tokens of the chat template; the last of them alone is in the loss."""
        token_ids = self._chat_text(row.samples[0])
        loss_mask = (*(False,) * len(token_ids), True)
        return replace(row, token_ids=(*token_ids, _NEXT), loss_mask=loss_mask, scalars={**row.scalars, **scalars})

    def scores(self, model: Any, batch: Batch) -> Tensor:
        """Return [B], the score at each row's last token."""
        scores_N = self.head(to_float32(hidden_states(model, batch.inputs).tokens_NH)).squeeze(-1)
        return masked_sum(batch.scatter_tokens(scores_N), batch.loss_mask_BT)

    def terms(self, model: nn.Module, batch: Batch, totals: MinibatchTotals) -> LossTerms:
        """Return the loss of all pairs, or of all labels, of one forward pass; means over the minibatch."""
        scores_B = self.scores(model, batch)
        if "pairs" in batch.scalars:
            entries = comparison_batch(batch)
            scores_S, worth_S = entries.mean(scores_B), entries.mean(batch.scalars["worth"])
            better_U, worse_U = scores_S[entries.better_U], scores_S[entries.worse_U]
            margin_U = self.settings.spread * (worth_S[entries.better_U] - worth_S[entries.worse_U])
            loss_U = bradley_terry(better_U, worse_U, margin_U, self.settings.centre)
            loss_B, right_count = entries.spread_over_rows(loss_U), (better_U > worse_U).sum()
        else:
            labels_B = batch.scalars["label"]
            right_count = (batch.counts_B * torch.where(scores_B > 0, labels_B, 1 - labels_B)).sum()
            loss_B = batch.counts_B * orm(scores_B, labels_B)
        count = totals.scalar_sums.get("pairs", totals.samples)
        mean = (scores_B.detach() * batch.counts_B).sum() / totals.samples
        return LossTerms(loss_B / count, {"accuracy": right_count / count, "score": mean})
