"""Trained reward models: Hugging Face sequence classifiers that score the last message of a chat."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from marl.core.graph import Chat
from marl.core.types import Completion, Failure, Request, Ticket
from marl.models.chat_template import ChatTokenizer
from marl.models.pretrained import TrainedPolicyRef
from marl.models.weights import LOADING_ERRORS, device_of
from marl.protocols import WeightlessEngine

Ids = tuple[int, ...]


class RewardModelFields(Protocol):
    """Settings of a reward model; `RewardModelSettings` explains every field."""

    path: str | TrainedPolicyRef
    dtype: Any
    device: str
    max_tokens: int
    micro_tokens: int

    def folder(self) -> Any: ...


class RewardModel:
    """Frozen reward model: scores the last message of each chat."""

    def __init__(self, settings: RewardModelFields) -> None:
        """Load weights and tokenizer.

        Raises:
            ValueError: with the folder's name, if files are missing or unreadable, weights are missing, or the number
                of labels is neither 1 nor 2.
        """
        self._settings = settings
        logging.disable_progress_bar()
        try:
            folder = settings.folder()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=settings.dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except LOADING_ERRORS as error:
            raise self._error(f"cannot be loaded: {error}") from error
        model, report = loaded
        if report["missing_keys"]:
            # A language model without a classification head would get a random one.
            raise self._error(f"has no weights for {', '.join(sorted(report['missing_keys'])[:5])}")
        if model.config.num_labels not in (1, 2):
            raise self._error(f"has {model.config.num_labels} labels; a reward model has 1 or 2")
        self._model = model.to(device_of(settings.device)).eval()
        self._chat_tokenizer = ChatTokenizer(self._tokenizer, frozenset())
        longest = self._model.config.to_dict().get("max_position_embeddings")
        if longest is not None and settings.max_tokens > longest:
            raise self._error(f"reads {longest} tokens, but max_tokens is {settings.max_tokens}")

    @torch.no_grad()
    def __call__(self, chats: Sequence[Chat]) -> list[float]:
        """Return one score per chat: the logit of a model with 1 label, the probability of label 1 of one with 2.

        Raises:
            ValueError: if the chat template refuses a chat, or a score is not finite.
        """
        texts: list[Ids] = []
        for chat in chats:
            try:
                ids = self._chat_tokenizer.encode_conversation(chat)
            except ValueError as error:
                raise self._error(f"cannot read this chat: {error}") from error
            # The end is scored, so a chat that is too long loses its beginning.
            texts.append(ids[-self._settings.max_tokens :])
        scores: dict[Ids, float] = {}
        for batch in self._batches(sorted(set(texts), key=lambda ids: (len(ids), ids))):
            scores.update(zip(batch, self._forward(batch).tolist(), strict=True))
        for ids, score in scores.items():
            if not math.isfinite(score):
                raise self._error(f"scores {self._tokenizer.decode(ids)!r} with {score}")
        return [scores[ids] for ids in texts]

    def _batches(self, texts: Sequence[Ids]) -> Iterator[list[Ids]]:
        """Yield batches of at most `micro_tokens` padded tokens. `texts` are sorted by length."""
        # Without a padding token, Transformers' classifiers cannot find the end of the shorter rows.
        needs_single_rows = self._model.config.pad_token_id is None
        batch: list[Ids] = []
        for ids in texts:
            if batch and (needs_single_rows or (len(batch) + 1) * len(ids) > self._settings.micro_tokens):
                yield batch
                batch = []
            batch.append(ids)
        if batch:
            yield batch

    def _forward(self, batch: Sequence[Ids]) -> Tensor:
        """Return the scores of a batch, [B] on the CPU."""
        width = len(batch[-1])
        ids = torch.full((len(batch), width), self._model.config.pad_token_id or 0)
        mask = torch.zeros(len(batch), width, dtype=torch.long)
        for row, text in enumerate(batch):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        device = self._model.device
        logits = self._model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits.float().cpu()
        return logits[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]

    def _error(self, problem: str) -> ValueError:
        """Return the error about `problem`, with the folder or run of the reward model."""
        path = self._settings.path
        location = path if isinstance(path, str) else f"{path.run}, policy {path.policy}"
        return ValueError(f"reward model {location!r} {problem}")


class RewardModelEngine(WeightlessEngine):
    """Engine that scores all requests of a step together. It keeps no state, so a resumed run forms equal batches."""

    reason = "is a reward model whose weights stay: it loads none"

    def __init__(self, settings: RewardModelFields, name: str) -> None:
        """`name`: key of the score in the answers."""
        self._name, self._score = name, RewardModel(settings)
        self._open: dict[Ticket, Chat] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open[ticket] = request.messages

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | Failure]]:
        chats, self._open = self._open, {}
        answers: list[tuple[Ticket, Completion | Failure]] = []
        for ticket, score in zip(chats, self._score(list(chats.values())), strict=True):
            text = json.dumps({"scores": {self._name: score}})
            answers.append((ticket, Completion(text, (), (), (), "stop")))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)
