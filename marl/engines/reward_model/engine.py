"""Trained reward models: Hugging Face sequence classifiers that score the last message of a chat."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from marl.core.graph import Chat
from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.models.chat_template import ChatTokenizer
from marl.models.weights import LOADING_ERRORS, torch_device
from marl.protocols import WeightlessEngine

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.reward_model.settings import RewardModelSettings

Ids = tuple[int, ...]


class RewardModel:
    """Frozen reward model, which scores the last message of each chat."""

    def __init__(self, settings: RewardModelSettings) -> None:
        """Load the reward model's weights and tokenizer.

        Raises:
            ValueError: with the folder's name, if files are missing or unreadable, weights are missing, or the number
                of labels is neither 1 nor 2.
        """
        self._settings = settings
        logging.disable_progress_bar()
        try:
            folder = settings.model_folder()
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            loaded: Any = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=settings.dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except LOADING_ERRORS as error:
            raise self._reward_model_error(f"cannot be loaded: {error}") from error
        model, report = loaded
        if report["missing_keys"]:
            # Transformers would give a random classification head to a language model without one.
            raise self._reward_model_error(f"has no weights for {', '.join(sorted(report['missing_keys'])[:5])}")
        if model.config.num_labels not in (1, 2):
            raise self._reward_model_error(f"has {model.config.num_labels} labels; a reward model has 1 or 2")
        self._model = model.to(torch_device(settings.device)).eval()
        self._chat_tokenizer = ChatTokenizer(self._tokenizer, frozenset())
        longest = self._model.config.to_dict().get("max_position_embeddings")
        if longest is not None and settings.max_tokens > longest:
            raise self._reward_model_error(f"reads {longest} tokens, but max_tokens is {settings.max_tokens}")

    @torch.no_grad()
    def __call__(self, chats: Sequence[Chat]) -> list[float]:
        """Return the score of each chat: the logit of a model with 1 label, or the probability of label 1 of 2 labels.

        Raises:
            ValueError: if the chat template refuses a chat, or a score is not finite.
        """
        texts: list[Ids] = []
        for chat in chats:
            try:
                ids = self._chat_tokenizer.encode_conversation(chat)
            except ValueError as error:
                raise self._reward_model_error(f"cannot read this chat: {error}") from error
            # The last message is scored, so a chat that is too long loses its beginning.
            texts.append(ids[-self._settings.max_tokens :])
        # Without a padding token, Transformers' classifiers cannot find the end of the shorter rows.
        needs_single_rows = self._model.config.pad_token_id is None
        batches: list[list[Ids]] = []
        for ids in sorted(set(texts), key=lambda ids: (len(ids), ids)):
            # The texts are sorted by length, so the last one of a batch decides the length of all rows.
            if not batches or needs_single_rows or (len(batches[-1]) + 1) * len(ids) > self._settings.micro_tokens:
                batches.append([])
            batches[-1].append(ids)
        scores: dict[Ids, float] = {}
        for batch in batches:
            padded_ids = torch.full((len(batch), len(batch[-1])), self._model.config.pad_token_id or 0)
            mask = torch.zeros_like(padded_ids)
            for row, ids in enumerate(batch):
                padded_ids[row, : len(ids)] = torch.tensor(ids)
                mask[row, : len(ids)] = 1
            device = self._model.device
            outputs = self._model(input_ids=padded_ids.to(device), attention_mask=mask.to(device))
            logits = outputs.logits.float().cpu()
            batch_scores = logits[:, 0] if logits.shape[1] == 1 else logits.softmax(-1)[:, 1]
            scores.update(zip(batch, batch_scores.tolist(), strict=True))
        for ids, score in scores.items():
            if not math.isfinite(score):
                raise self._reward_model_error(f"scores {self._tokenizer.decode(ids)!r} with {score}")
        return [scores[ids] for ids in texts]

    def _reward_model_error(self, problem: str) -> ValueError:
        """Return an error whose message names the folder or run of the reward model, followed by `problem`."""
        path = self._settings.path
        location = path if isinstance(path, str) else f"{path.run}, policy {path.policy}"
        return ValueError(f"reward model {location!r} {problem}")


class RewardModelEngine(WeightlessEngine):
    """Engine of a reward model, which scores all open requests together.

    The engine keeps no state between steps, so that a resumed run forms equal batches.
    """

    reason = "is a reward model whose weights stay: it loads none"

    def __init__(self, settings: RewardModelSettings, name: str) -> None:
        """`name`: name of the score in the answers."""
        self._name, self._score = name, RewardModel(settings)
        self._open: dict[Ticket, Chat] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        self._open[ticket] = request.messages

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        chats, self._open = self._open, {}
        answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        for ticket, score in zip(chats, self._score(list(chats.values())), strict=True):
            text = json.dumps({"scores": {self._name: score}})
            answers.append((ticket, Completion(text, (), (), (), "stop")))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)
