"""Reward models: pairs that are told apart (Bradley & Terry 1952), outcomes (2110.14168) and steps (2305.20050).

Shape suffixes: B = rows, T = completion tokens, S = sides, U = pairs, H = hidden.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.protocols import Brief
from marl.seeds import seed_of
from marl.types import Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.chat_text import Wording
from trainers.batching.contest_tensors import Sides, sides_of
from trainers.batching.pairs import contests, paired_rows, worth
from trainers.batching.rows import Row, group, totals_of
from trainers.forward.classifier import blank, save_classifier
from trainers.forward.model_inputs import states
from trainers.learner import Learner
from trainers.losses.aggregation import Totals, masked_sum, widened
from trainers.losses.preferences import bradley_terry, orm
from trainers.objectives.objective import Objective, Terms

if TYPE_CHECKING:
    from trainers.settings import RewardModel

_NEXT = 0
"""Stands for the token after the last, which no model reads: the state before it is the one at the last."""


class Rating(Objective):
    """A score at the last token of each turn. `accuracy` is measured before each optimizer step, on what it is about:
    pairs in the right order, or labels on the right side of even odds."""

    parts = ("accuracy", "score")

    def __init__(self, settings: RewardModel, model: Any, wording: Wording) -> None:
        blank(model)  # whether there is such a classifier is known before anything is learnt
        self.settings, self._wording = settings, wording
        embeddings = model.get_output_embeddings().weight
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, bias=False, device=embeddings.device, dtype=kind)
        nn.init.zeros_(self.head.weight)

    def modules(self) -> Mapping[str, nn.Module]:
        """The head."""
        return {"head": self.head}

    def together(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Samples that are compared with one another."""
        if self.settings.objective != "bradley_terry":
            return super().together(samples)
        return [contest.samples for contest in contests(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Turns in pairs, with the fact `worth`; or all turns, with the fact `label`: of those that say the same, the
        share of good ones."""
        if self.settings.objective == "bradley_terry":
            rows = paired_rows(samples, self.settings)
            return [self._worded(row, worth=worth(row.samples, self.settings.label)) for row in rows]
        alike = group(samples, _nothing, True)
        rows = [Row(m[0].prompt_ids, m[0].token_ids, count=len(m), samples=m) for m in alike]
        return [self._worded(row, label=fmean(map(self._good, row.samples))) for row in rows]

    def _worded(self, row: Row, **facts: float) -> Row:
        said = self._wording(row.samples[0])
        counted = (*(False,) * len(said), True)
        return replace(row, token_ids=(*said, _NEXT), counted=counted, facts={**row.facts, **facts})

    def _good(self, sample: Sample) -> bool:
        return worth((sample,), self.settings.label) >= self.settings.threshold

    def scores(self, model: Any, batch: Batch) -> Tensor:
        """[B]."""
        said_N = self.head(widened(states(model, batch.texts).said_NH)).squeeze(-1)
        return masked_sum(batch.spread(said_N), batch.counted_BT)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> Terms:
        """The loss of all pairs, or of all labels, of one forward pass; means over the minibatch."""
        scores_B = self.scores(model, batch)
        loss_B, right = self._paired(scores_B, batch, totals) if "pairs" in batch.facts else _odds(scores_B, batch)
        many = totals.facts.get("pairs", totals.samples)
        mean = (scores_B.detach() * batch.counts_B).sum() / totals.samples
        return Terms(loss_B / many, {"accuracy": right / many, "score": mean})

    def _paired(self, scores_B: Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Tensor]:
        sides = sides_of(batch)
        scores_S = _mean(sides, scores_B)
        better_U, worse_U = scores_S[sides.better_U], scores_S[sides.worse_U]
        worth_S = _mean(sides, batch.facts["worth"])
        margin_U = self.settings.spread * (worth_S[sides.better_U] - worth_S[sides.worse_U])
        loss_U = bradley_terry(better_U, worse_U, margin_U, self.settings.centre)
        return sides.shares(loss_U), (better_U > worse_U).sum()


def _odds(scores_B: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    labels_B = batch.facts["label"]
    # Of rows that stand for several samples, those on the score's side of even odds are right.
    right_B = torch.where(scores_B > 0, labels_B, 1 - labels_B)
    return batch.counts_B * orm(scores_B, labels_B), (batch.counts_B * right_B).sum()


def _mean(sides: Sides, values_B: Tensor) -> Tensor:
    return sides.sum(values_B) / sides.sum(torch.ones_like(values_B))


def _nothing(_: Sample) -> Hashable:
    return None


class RewardLearner(Learner):
    """Scores a fixed share of prompts without ever learning from them, and saves a classifier."""

    settings: RewardModel
    objective: Rating

    def __init__(self, settings: RewardModel, brief: Brief, model: Any, objective: Rating) -> None:
        super().__init__(settings, brief, model, objective)
        self._right, self._many = 0.0, 0.0
        """Of what was held out since the last time that its accuracy was told."""

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once, those that are held out aside."""
        held = {sample.prompt_ids for sample in samples if self._holds_out(sample)}
        metrics = super().update([sample for sample in samples if sample.prompt_ids not in held])
        self._score([sample for sample in samples if sample.prompt_ids in held])
        if self.updates % self.settings.held_out_every or not self._many:
            return metrics
        found = {"held_out_accuracy": self._right / self._many, "held_out": self._many}
        self._right, self._many = 0.0, 0.0
        return metrics | found

    def _holds_out(self, sample: Sample) -> bool:
        return seed_of("held out", *sample.prompt_ids) < self.settings.held_out * 2**64

    @torch.no_grad()
    def _score(self, held: Sequence[Sample]) -> None:
        """With the weights as they are after the update."""
        rows = self.objective.rows(held)
        totals = totals_of(rows)
        self.model.eval()
        for _, batch in self._plan.batches(rows) if rows else ():
            many = totals.facts.get("pairs", totals.samples)
            self._right += float(self.objective.terms(self.model, batch, totals).parts["accuracy"]) * many
        self._many += totals.facts.get("pairs", totals.samples) if rows else 0
        self.model.train()

    def save(self, folder: Path) -> None:
        """A Hugging Face folder with a sequence classifier of one label, and the tokenizer."""
        save_classifier(folder, self.model, self.objective.head.weight, self.brief.source.tokenizer())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held_out": [self._right, self._many]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._right, self._many = state["held_out"]
