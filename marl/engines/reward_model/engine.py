"""Trained reward models: Hugging Face classifiers that score the last message of a chat."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from marl.graph import Chat
from marl.models.chat_template import ChatTokenizer
from marl.models.weights import UNREADABLE, device_of
from marl.protocols import WeightlessEngine
from marl.types import Completion, Failure, Request, Ticket

if TYPE_CHECKING:
    from marl.engines.reward_model.settings import RewardModelSettings, RewardSeat

Ids = tuple[int, ...]


class Scorer:
    """Reward model that scores the last message of chats. Its weights never change."""

    def __init__(self, settings: RewardModelSettings) -> None:
        """Load weights and tokenizer.

        Raises:
            ValueError: naming the folder, if they are missing, cannot be loaded, lack weights, or have neither 1 nor 2
                labels.
        """
        self._settings = settings
        self._tokenizer, self._model = _load(settings)
        self._chat_tokenizer = ChatTokenizer(self._tokenizer, frozenset())
        longest = self._model.config.to_dict().get("max_position_embeddings")
        if longest is not None and settings.max_tokens > longest:
            raise _fault(settings, f"reads {longest} tokens, but max_tokens is {settings.max_tokens}")
        self._pad = self._model.config.pad_token_id

    @torch.no_grad()
    def __call__(self, chats: Sequence[Chat]) -> list[float]:
        """Return one score per chat: the logit of a model with 1 label, the probability of label 1 of one with 2.

        Raises:
            ValueError: if a score is not a finite number.
        """
        texts = [self._ids(chat) for chat in chats]
        scores: dict[Ids, float] = {}
        for batch in self._batches(sorted(set(texts), key=lambda ids: (len(ids), ids))):
            scores.update(zip(batch, self._forward(batch).tolist(), strict=True))
        for ids, score in scores.items():
            if not math.isfinite(score):
                raise _fault(self._settings, f"scores {self._tokenizer.decode(ids)!r} with {score}")
        return [scores[ids] for ids in texts]

    def _ids(self, chat: Chat) -> Ids:
        """Return the token ids of a chat; one that is too long loses its beginning."""
        try:
            ids = self._chat_tokenizer.conversation(chat)
        except ValueError as error:
            raise _fault(self._settings, f"cannot read this chat: {error}") from error
        return ids[-self._settings.max_tokens :]

    def _batches(self, texts: Sequence[Ids]) -> Iterator[list[Ids]]:
        """Yield texts in batches, in order, the shortest first; one at a time where the model knows no padding."""
        batch: list[Ids] = []
        for ids in texts:
            if batch and (self._pad is None or (len(batch) + 1) * len(ids) > self._settings.micro_tokens):
                yield batch
                batch = []
            batch.append(ids)
        if batch:
            yield batch

    def _forward(self, batch: Sequence[Ids]) -> Tensor:
        """Return the scores of a batch, [B] on the CPU."""
        width = len(batch[-1])
        ids = torch.tensor([[*text, *[self._pad or 0] * (width - len(text))] for text in batch])
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in batch])
        device = self._model.device
        logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float().cpu()
        return logits[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]


class RatingEngine(WeightlessEngine):
    """Engine that scores all requests of a step in one go. It keeps no state, so a resumed run has the same batches."""

    reason = "is a reward model whose weights stay: it loads none"

    def __init__(self, settings: RewardSeat) -> None:
        self._name, self._score = settings.name, Scorer(settings)
        self._open: dict[Ticket, Chat] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open[ticket] = request.messages

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        chats, self._open = self._open, {}
        texts = [json.dumps({"scores": {self._name: score}}) for score in self._score(list(chats.values()))]
        return [(ticket, Completion(text, (), (), (), "stop")) for ticket, text in zip(chats, texts, strict=True)]

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)


def _load(settings: RewardModelSettings) -> tuple[Any, Any]:
    logging.disable_progress_bar()
    try:
        folder = settings.folder()
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=settings.dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except UNREADABLE as error:
        raise _fault(settings, f"cannot be loaded: {error}") from error
    model, report = loaded
    if report["missing_keys"]:
        # A language model without a classification head would get a random one.
        raise _fault(settings, f"has no weights for {', '.join(sorted(report['missing_keys'])[:5])}")
    if model.config.num_labels not in (1, 2):
        raise _fault(settings, f"has {model.config.num_labels} labels; a reward model has 1 or 2")
    return tokenizer, model.to(device_of(settings.device)).eval()


def _fault(settings: RewardModelSettings, problem: str) -> ValueError:
    where = settings.path if isinstance(settings.path, str) else f"{settings.path.run}, policy {settings.path.policy}"
    return ValueError(f"reward model {where!r} {problem}")
