"""Trained reward models: Hugging Face sequence classifiers that score the last message of a chat."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from marl.core.graph import Chat
from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.models.chat_template import ChatTokenizer
from marl.models.segment_tokens import last_tokens_in_conversation
from marl.models.weights import LOADING_ERRORS, torch_device
from marl.protocols import WeightlessEngine

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.reward_model.settings import RewardModelConfig, RewardModelSettings

Ids = tuple[int, ...]
Offsets = Sequence[int]
"""Offset in a chat's last message after each of its segments; empty if it has no segments."""


class RewardModel:
    """Frozen reward model, which scores the last message of each chat."""

    def __init__(self, settings: RewardModelSettings, *, by_segment: bool = False) -> None:
        """Load the reward model's weights and tokenizer. `by_segment`: score single tokens.

        Raises:
            ValueError: with the folder's name, if files are missing or unreadable, weights are missing, the number of
                labels is neither 1 nor 2, or the model cannot score single tokens.
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
        self._token_head = self._find_token_head() if by_segment else None
        """Head that scores the state of each token, or None if the model scores texts."""
        longest = self._model.config.to_dict().get("max_position_embeddings")
        if longest is not None and settings.max_tokens > longest:
            raise self._reward_model_error(f"reads {longest} tokens, but max_tokens is {settings.max_tokens}")

    def __call__(self, chats: Sequence[Chat]) -> list[float]:
        """Return the score of each chat: the logit of a model with 1 label, or the probability of label 1 of 2 labels.

        Raises:
            ValueError: if the chat template refuses a chat, or a score is not finite.
        """
        return [score for [score] in self.score_segments([(chat, ()) for chat in chats])]

    def score_segments(self, chats: Sequence[tuple[Chat, Offsets]]) -> list[list[float]]:
        """Return a score for each segment of the last message of each chat, or one for a chat without segments.

        A chat comes with the offset in its last message after each segment. A segment's score is computed at its last
        token. Segments that do not fit into `max_tokens` have the score of the first token that does.

        Raises:
            ValueError: if the chat template refuses a chat, or a score is not finite.
        """
        texts: list[tuple[Ids, Ids]] = []
        for chat, offsets in chats:
            try:
                ids = self._chat_tokenizer.encode_conversation(chat)
                ends = last_tokens_in_conversation(self._chat_tokenizer, chat, offsets) if offsets else [len(ids) - 1]
            except ValueError as error:
                raise self._reward_model_error(f"cannot read this chat: {error}") from error
            # The last message is scored, so a chat that is too long loses its beginning.
            omitted = max(len(ids) - self._settings.max_tokens, 0)
            texts.append((ids[omitted:], tuple([max(end - omitted, 0) for end in ends])))
        scores: dict[tuple[Ids, Ids], list[float]] = {}
        for batch in self._batches(set(texts)):
            scores.update(zip(batch, self._score_batch(batch), strict=True))
        for (ids, _), numbers in scores.items():
            for score in numbers:
                if not math.isfinite(score):
                    raise self._reward_model_error(f"scores {self._tokenizer.decode(ids)!r} with {score}")
        return list(map(scores.__getitem__, texts))

    def _batches(self, texts: Collection[tuple[Ids, Ids]]) -> list[list[tuple[Ids, Ids]]]:
        """Return (token ids, tokens to score) of `texts` in batches of at most `micro_tokens` tokens, by length."""
        # Without a padding token, Transformers' classifiers cannot find the end of the shorter rows.
        needs_single_rows = self._model.config.pad_token_id is None
        batches: list[list[tuple[Ids, Ids]]] = []
        for text in sorted(texts, key=lambda text: (len(text[0]), text)):
            # The texts are sorted by length, so the last one of a batch decides the length of all rows.
            is_full = batches and (len(batches[-1]) + 1) * len(text[0]) > self._settings.micro_tokens
            if not batches or needs_single_rows or is_full:
                batches.append([])
            batches[-1].append(text)
        return batches

    @torch.no_grad()
    def _score_batch(self, batch: Sequence[tuple[Ids, Ids]]) -> list[list[float]]:
        """Return the scores of each text of `batch`, at each of its tokens to score."""
        padded_ids = torch.full((len(batch), len(batch[-1][0])), self._model.config.pad_token_id or 0)
        mask = torch.zeros_like(padded_ids)
        for row, (ids, _) in enumerate(batch):
            padded_ids[row, : len(ids)] = torch.tensor(ids)
            mask[row, : len(ids)] = 1
        inputs = {"input_ids": padded_ids.to(self._model.device), "attention_mask": mask.to(self._model.device)}
        if self._token_head is None:
            logits_BL = self._model(**inputs).logits.float().cpu()
            logits_by_row = logits_BL[:, None].unbind()
        else:
            states_BTH = self._model.base_model(**inputs).last_hidden_state
            logits_BTL = self._token_head(states_BTH).float().cpu()
            logits_by_row = [logits_BTL[row, list(ends)] for row, (_, ends) in enumerate(batch)]
        scores: list[list[float]] = []
        for logits_SL in logits_by_row:
            scores_S = logits_SL[:, 0] if logits_SL.shape[1] == 1 else logits_SL.softmax(-1)[:, 1]
            scores.append(scores_S.tolist())
        return scores

    def _find_token_head(self) -> torch.nn.Module:
        """Return the classifier's head, which scores the states of single tokens.

        Raises:
            ValueError: if the head is more than one linear layer, as of classifiers that pool a text.
        """
        body = set(map(id, self._model.base_model.modules()))
        heads = [module for module in self._model.children() if id(module) not in body]
        if len(heads) != 1 or not isinstance(heads[0], torch.nn.Linear):
            raise self._reward_model_error(
                f"is a {type(self._model).__name__}, whose head is no linear layer on the states of tokens: it cannot "
                "score segments; choose level: turn"
            )
        return heads[0]

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

    def __init__(self, settings: RewardModelConfig) -> None:
        self._settings, self._score = settings, RewardModel(settings, by_segment=settings.level == "segment")
        self._open: dict[Ticket, tuple[Chat, Offsets]] = {}

    def submit(self, ticket: Ticket, request: Request) -> None:
        by_segment = self._settings.level == "segment"
        self._open[ticket] = request.messages, request.segment_offsets if by_segment else ()

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        chats, self._open = self._open, {}
        answers: list[tuple[Ticket, Completion | CompletionFailure]] = []
        for (ticket, (_, offsets)), scores in zip(
            chats.items(), self._score.score_segments(list(chats.values())), strict=True
        ):
            text = json.dumps({"scores": {self._settings.name: scores if offsets else scores[0]}})
            answers.append((ticket, Completion(text, (), (), (), "stop")))
        return answers

    def cancel(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._open.pop(ticket, None)
