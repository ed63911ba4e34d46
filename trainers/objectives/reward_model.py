"""Reward models: pairs that are told apart (Bradley & Terry 1952), outcomes (2110.14168) and steps (2305.20050)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from marl.models.chat_template import ChatTokenizer
from marl.models.lora import adapter_layers
from marl.protocols import LearnerContext
from marl.seeds import seed_of
from marl.types import Message, Metrics, Sample
from trainers.batching.batches import Batch
from trainers.batching.pairs import contest_batch, contests, paired_rows, worth
from trainers.batching.rows import Row, plain_rows, totals_of
from trainers.forward.model_inputs import hidden_states
from trainers.learner import GradientLearner
from trainers.losses.aggregation import Totals, masked_sum, widened
from trainers.losses.preferences import bradley_terry, orm
from trainers.objectives.objective import LossTerms, Objective

if TYPE_CHECKING:
    from trainers.settings.preferences import RewardModeling

_QUESTION, _ANSWER = "What is right?", "THE-ANSWER"
_NEXT = 0
"""Placeholder for the token after the last, which no model reads: the state before it is the one at the last."""


class ChatText:
    """Function from a sample to the tokens that the chat template makes of the same answer, after the same prompt.

    A reward model is later given a conversation in words, so it learns from words, too: the sampled tokens are decoded,
    cut at a stop text, put between what the template writes before and after an answer, and encoded anew. An answer
    that was cut off before its end token gets one; one in unusual tokens is tokenised in the usual way.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises:
        ValueError: if the template writes a conversation whose beginning is not the prompt for its answer.
        """
        self._tokenizer, self._chat = tokenizer, ChatTokenizer(tokenizer, frozenset())
        self._before, self._after = self._around()

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """Return the ids that follow the prompt of `sample`, at the last of which it is rated."""
        text = self._chat.text(sample.token_ids)
        ends = [place for stop in sample.sampling.stop if (place := text.find(stop)) >= 0]
        text = text[: min(ends, default=len(text))]
        marks = self._chat.marks
        return tuple(marks.ids(f"{self._before}{marks.disarm(text)}{self._after}"))

    def _around(self) -> tuple[str, str]:
        """Return the texts that the template writes between the prompt and an answer, and after it."""
        if self._tokenizer.chat_template is None:
            return "", ""
        messages = [Message("user", _QUESTION)._asdict(), Message("assistant", _ANSWER)._asdict()]
        prompt = self._tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
        whole = self._tokenizer.apply_chat_template(messages, tokenize=False)
        before, answer, after = whole.removeprefix(prompt).partition(_ANSWER)
        if not whole.startswith(prompt) or not answer:
            raise ValueError(
                f"the chat template writes {whole!r}, which does not begin with the prompt for the answer, {prompt!r}: "
                "a reward model would learn from other texts than it is later given"
            )
        return before, after


class Rating(Objective):
    """A score at the last token of each turn. `accuracy` is measured before each optimizer step: of pairs, the share in
    the right order; of labels, the share on the right side of even odds."""

    parts = ("accuracy", "score")

    def __init__(self, settings: RewardModeling, model: Any, chat_text: ChatText) -> None:
        empty_classifier(model)  # raises before anything is learned, if there is no such classifier
        self.settings, self._chat_text = settings, chat_text
        embeddings = model.get_output_embeddings().weight
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        self.head = nn.Linear(embeddings.shape[1], 1, bias=False, device=embeddings.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)

    def modules(self) -> Mapping[str, nn.Module]:
        return {"head": self.head}

    def sample_units(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        """Return samples that are compared with one another."""
        if self.settings.objective != "bradley_terry":
            return super().sample_units(samples)
        return [contest.samples for contest in contests(samples, self.settings)]

    def rows(self, samples: Sequence[Sample]) -> list[Row]:
        """Return rows of turns in pairs, with the fact `worth`; or of all turns, with the fact `label`: of identical
        turns, the share of good ones."""
        if self.settings.objective == "bradley_terry":
            rows = paired_rows(samples, self.settings)
            return [self._chat_row(row, worth=worth(row.samples, self.settings.label)) for row in rows]
        by, least = self.settings.label, self.settings.threshold
        rows = plain_rows(samples, merge=True)
        return [self._chat_row(row, label=fmean(worth((s,), by) >= least for s in row.samples)) for row in rows]

    def _chat_row(self, row: Row, **facts: float) -> Row:
        token_ids = self._chat_text(row.samples[0])
        loss_mask = (*(False,) * len(token_ids), True)
        return replace(row, token_ids=(*token_ids, _NEXT), loss_mask=loss_mask, facts={**row.facts, **facts})

    def scores(self, model: Any, batch: Batch) -> Tensor:
        """Return [B]."""
        scores_N = self.head(widened(hidden_states(model, batch.inputs).tokens_NH)).squeeze(-1)
        return masked_sum(batch.spread(scores_N), batch.loss_mask_BT)

    def terms(self, model: nn.Module, batch: Batch, totals: Totals) -> LossTerms:
        """Return the loss of all pairs, or of all labels, of one forward pass; means over the minibatch."""
        scores_B = self.scores(model, batch)
        if "pairs" in batch.facts:
            loss_B, right = self._pair_loss(scores_B, batch)
        else:  # right are the samples whose score is on the label's side of even odds
            labels_B = batch.facts["label"]
            right = (batch.counts_B * torch.where(scores_B > 0, labels_B, 1 - labels_B)).sum()
            loss_B = batch.counts_B * orm(scores_B, labels_B)
        many = totals.facts.get("pairs", totals.samples)
        mean = (scores_B.detach() * batch.counts_B).sum() / totals.samples
        return LossTerms(loss_B / many, {"accuracy": right / many, "score": mean})

    def _pair_loss(self, scores_B: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return [B], the loss, and [], the number of pairs in the right order."""
        entries = contest_batch(batch)
        scores_S, worth_S = entries.mean(scores_B), entries.mean(batch.facts["worth"])
        better_U, worse_U = scores_S[entries.better_U], scores_S[entries.worse_U]
        margin_U = self.settings.spread * (worth_S[entries.better_U] - worth_S[entries.worse_U])
        loss_U = bradley_terry(better_U, worse_U, margin_U, self.settings.centre)
        return entries.shares(loss_U), (better_U > worse_U).sum()


class RewardLearner(GradientLearner):
    """Learner that scores a fixed share of prompts without learning from them, and saves a classifier."""

    settings: RewardModeling
    objective: Rating

    def __init__(self, settings: RewardModeling, context: LearnerContext, model: Any, objective: Rating) -> None:
        super().__init__(settings, context, model, objective)
        self._right, self._many = 0.0, 0.0
        """Held-out pairs or samples in the right order, and all of them, since the last report."""

    def update(self, samples: Sequence[Sample]) -> Metrics:
        """Learn from `samples` once, without those that are held out."""
        held_out = {sample.prompt_ids for sample in samples if self._holds_out(sample)}
        metrics = super().update([sample for sample in samples if sample.prompt_ids not in held_out])
        self._score([sample for sample in samples if sample.prompt_ids in held_out])
        if self.updates % self.settings.held_out_every or not self._many:
            return metrics
        report = {"held_out_accuracy": self._right / self._many, "held_out": self._many}
        self._right, self._many = 0.0, 0.0
        return metrics | report

    def _holds_out(self, sample: Sample) -> bool:
        return seed_of("held out", *sample.prompt_ids) < self.settings.held_out * 2**64

    @torch.no_grad()
    def _score(self, held_out: Sequence[Sample]) -> None:
        """Count right scores with the weights after the update."""
        rows = self.objective.rows(held_out)
        if not rows:
            return
        totals = totals_of(rows)
        many = totals.facts.get("pairs", totals.samples)
        self.model.eval()
        for _, batch in self._planner.batches(rows):
            self._right += float(self.objective.terms(self.model, batch, totals).parts["accuracy"]) * many
        self._many += many
        self.model.train()

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with a sequence classifier of one label, adapters merged, and the tokenizer."""
        if self.context.collective.rank:
            return
        tokenizer = self.context.source.tokenizer()
        # Classifiers are read at the last token that is no padding: none may stand at the end of a text.
        pad = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id
        classifier = empty_classifier(self.model, pad).to_empty(device="cpu")
        with torch.no_grad():
            classifier.base_model.load_state_dict(_merged(self.model).base_model.state_dict())
            _head_parameters(classifier)[0].copy_(self.objective.head.weight)
        classifier.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held_out": [self._right, self._many]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._right, self._many = state["held_out"]


def empty_classifier(model: Any, pad: int | None = None) -> Any:
    """Return the sequence classifier of `model`'s architecture, with one label and no data (on torch's `meta` device).

    Raises:
        ValueError: if there is none that has `model`'s body and a head of nothing but weights.
    """
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id, config.dtype = 1, pad, model.dtype
    with torch.device("meta"):
        classifier = AutoModelForSequenceClassification.from_config(config)
    if classifier.base_model_prefix != model.base_model_prefix or len(_head_parameters(classifier)) != 1:
        raise ValueError(
            f"{type(classifier).__name__} is not {type(model).__name__} with a head of nothing but weights"
        )
    return classifier


def _head_parameters(classifier: Any) -> list[Tensor]:
    body = {id(parameter) for parameter in classifier.base_model.parameters()}
    return [parameter for parameter in classifier.parameters() if id(parameter) not in body]


def _merged(model: Any) -> Any:
    """Return the model without adapters, which are added to a copy of the weights."""
    if not list(adapter_layers(model)):
        return model
    merged: Any = copy.deepcopy(model)
    for path, layer in list(adapter_layers(merged)):
        layer.merge()  # type: ignore[operator]
        merged.set_submodule(path, layer.get_base_layer())
    return merged
