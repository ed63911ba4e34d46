"""Learner of reward models: holds out prompts, and saves a classifier."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from marl.core.seeds import seed_of
from marl.core.types import Metrics, Sample
from marl.models.lora import adapter_layers
from marl.protocols import LearnerContext
from marl.trainers.batching.rows import count_totals
from marl.trainers.learner import GradientLearner
from marl.trainers.reward_model.classifier import empty_classifier, head_parameters
from marl.trainers.reward_model.objective import RewardModelObjective
from marl.trainers.reward_model.options import RewardModelOptions


class RewardModelLearner(GradientLearner):
    """Learner that scores a fixed share of prompts without learning from them, and saves a classifier."""

    settings: RewardModelOptions
    objective: RewardModelObjective

    def __init__(
        self, settings: RewardModelOptions, context: LearnerContext, model: Any, objective: RewardModelObjective
    ) -> None:
        super().__init__(settings, context, model, objective)
        self._right_count, self._held_out_count = 0.0, 0.0
        """Held-out pairs or samples in the right order, and all of them, since the last report."""

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once, without the held-out ones, which are scored with the new weights."""
        limit = self.settings.held_out * 2**64
        held_out: list[Sample] = []
        remaining: list[Sample] = []
        for sample in samples:
            # The hash is of the prompt alone, so a prompt is held out in every update or in none.
            (held_out if seed_of("held out", *sample.prompt_ids) < limit else remaining).append(sample)
        metrics = super().update(remaining)
        self._score(held_out)
        if self.updates % self.settings.held_out_every or not self._held_out_count:
            return metrics
        report = {"held_out_accuracy": self._right_count / self._held_out_count, "held_out": self._held_out_count}
        self._right_count, self._held_out_count = 0.0, 0.0
        return metrics | report

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample]) -> None:
        """Count right scores with the weights after the update."""
        rows = self.objective.rows(samples)
        if not rows:
            return
        totals = count_totals(rows)
        count = totals.scalar_sums.get("pairs", totals.samples)
        self.model.eval()
        for _, batch in self._planner.batches(rows):
            self._right_count += float(self.objective.terms(self.model, batch, totals).loss_terms["accuracy"]) * count
        self._held_out_count += count
        self.model.train()

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with a sequence classifier of one label, adapters merged, and the tokenizer."""
        if self.context.data_parallel.rank:
            return
        tokenizer = self.context.source.tokenizer()
        # Classifiers are read at the last token that is no padding: a padding token must not end a text.
        pad = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id
        classifier = empty_classifier(self.model, pad).to_empty(device="cpu")
        merged = self.model
        if list(adapter_layers(self.model)):
            # Merging changes weights in place, so it is done in a copy.
            merged = copy.deepcopy(self.model)
            for path, layer in list(adapter_layers(merged)):
                layer.merge()  # type: ignore[operator]
                merged.set_submodule(path, layer.get_base_layer())
        with torch.no_grad():
            classifier.base_model.load_state_dict(merged.base_model.state_dict())
            head_parameters(classifier)[0].copy_(self.objective.head.weight)
        classifier.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held_out": [self._right_count, self._held_out_count]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._right_count, self._held_out_count = state["held_out"]
