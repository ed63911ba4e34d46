"""Learner of reward models, which holds out prompts and saves a sequence classifier."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from marl.core.seeds import hash_to_seed
from marl.core.types import Metrics, Sample
from marl.models.lora import adapter_layers
from marl.protocols import LearnerBuildArguments
from marl.trainers.batching.rows import count_minibatch_totals
from marl.trainers.learner import GradientLearner
from marl.trainers.reward_model.classifier import classifier_head_parameters, sequence_classifier_on_meta_device
from marl.trainers.reward_model.objective import RewardModelObjective
from marl.trainers.reward_model.options import RewardModelOptions

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/held_out_accuracy | share | as `accuracy`, on prompts that are never learned from, since the last
    report (`reward_modeling`)
policy/POLICY/held_out | pairs, turns or segments | number behind `held_out_accuracy`
"""


class RewardModelLearner(GradientLearner):
    """Learner of a reward model. A share of prompts is held out to measure accuracy; the model is saved as a
    classifier."""

    settings: RewardModelOptions
    objective: RewardModelObjective

    def __init__(
        self, settings: RewardModelOptions, context: LearnerBuildArguments, model: Any, objective: RewardModelObjective
    ) -> None:
        super().__init__(settings, context, model, objective)
        self._right_count, self._held_out_count = 0.0, 0.0
        """Number of correctly scored held-out pairs or samples since the last report, and number of all of them."""

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Update the weights on the samples that are not held out, then score held-out samples with the new weights."""
        limit = self.settings.held_out * 2**64
        held_out: list[Sample] = []
        remaining: list[Sample] = []
        for sample in samples:
            # The hash depends on the prompt alone, so a prompt is held out in every update or in none.
            (held_out if hash_to_seed("held out", *sample.prompt_ids) < limit else remaining).append(sample)
        metrics = super().update(remaining)
        if rows := self.objective.rows(held_out):
            totals = count_minibatch_totals(rows)
            count = self.objective.loss_unit_count(totals)
            self.model.eval()
            with torch.no_grad():
                for _, batch in self._planner.collated_batches(rows):
                    terms = self.objective.forward_loss(self.model, batch, totals)
                    self._right_count += float(terms.loss_terms["accuracy"]) * count
            self._held_out_count += count
            self.model.train()
        if self.updates % self.settings.held_out_every or not self._held_out_count:
            return metrics
        report = {"held_out_accuracy": self._right_count / self._held_out_count, "held_out": self._held_out_count}
        self._right_count, self._held_out_count = 0.0, 0.0
        return metrics | report

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with a one-label sequence classifier, adapters merged, and the tokenizer."""
        if self.context.data_parallel.rank:
            return
        tokenizer = self.context.source.tokenizer()
        # A classifier scores the last token that is not padding, so padding must differ from the end token.
        pad = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id
        classifier = sequence_classifier_on_meta_device(self.model, pad).to_empty(device="cpu")
        merged = self.model
        if list(adapter_layers(self.model)):
            # Merging changes weights in place, so the adapter is merged into a copy.
            merged = copy.deepcopy(self.model)
            for path, layer in list(adapter_layers(merged)):
                layer.merge()  # type: ignore[operator]
                merged.set_submodule(path, layer.get_base_layer())
        with torch.no_grad():
            classifier.base_model.load_state_dict(merged.base_model.state_dict())
            classifier_head_parameters(classifier)[0].copy_(self.objective.head.weight)
        classifier.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held_out": [self._right_count, self._held_out_count]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._right_count, self._held_out_count = state["held_out"]
