"""The engine that samples with Transformers: continuous batching in slots, refilled in ticket order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from marl.core.types import Completion, CompletionFailure, Request, Ticket
from marl.engines.token_engine import (
    check_no_open_requests,
    check_shared_weights_version,
    context_length,
    context_overflow_failure,
    decode_completion,
    end_token_ids,
    max_completion_tokens,
    nan_logits_error,
    thinking_budget_after_prefix,
    with_segments,
)
from marl.engines.transformers.decoding import Decoder
from marl.engines.transformers.model_runner import ModelRunner
from marl.engines.transformers.policy_weights import FullWeights
from marl.engines.transformers.scoring import score_forced_texts
from marl.engines.transformers.slots import SamplingJob
from marl.engines.transformers.static_decoding import StaticDecoder
from marl.models.chat_template import ChatTokenizer
from marl.protocols import ModelSource, Weights

if TYPE_CHECKING:
    # `multi_lora` is imported for type checkers only, because it loads PEFT, which runs without adapters do not need.
    # `settings` imports this module, so importing `settings` at run time would be circular.
    from marl.engines.transformers.multi_lora import MultiLoraModel
    from marl.engines.transformers.settings import Transformers

_REFILL_DIVISOR = 8
"""Divisor of the number of slots: new prompts are read as soon as slots / `_REFILL_DIVISOR` slots are free."""
Answer = tuple[Ticket, Completion | CompletionFailure]


class TransformersEngine:
    """Engine with one Transformers model, for several policies. Each step samples one token of every request
    that has a slot; further requests wait for a slot.
    """

    def __init__(self, policy_weights: FullWeights | MultiLoraModel, tokenizer: Any, settings: Transformers) -> None:
        """Check that model, tokenizer and settings fit together.

        Raises:
            ValueError: if the tokenizer has more tokens than the model, `max_context` exceeds the model's positions, or
                the architecture cannot be decoded in slots, or not as the setting `cache` says.
        """
        model = policy_weights.model
        embedded = model.get_input_embeddings().weight.shape[0]
        if len(tokenizer) > embedded:
            raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, but {type(model).__name__} embeds {embedded}")
        self.policy_weights = policy_weights
        self.network = ModelRunner(policy_weights, settings.prefill_tokens)
        self.context = context_length(model.config, settings.max_context)
        ends = end_token_ids(model.generation_config.eos_token_id, tokenizer)
        self.chat_tokenizer = ChatTokenizer(tokenizer, ends)
        self._ends_E = np.array(sorted(ends), np.int64)
        self._queue: list[tuple[Ticket, SamplingJob]] = []
        self._refused: list[Answer] = []
        self._tickets: set[Ticket] = set()
        # Free slots are gathered, because reading one short prompt costs about as much as a step of all rows.
        self._refill = max(1, settings.slots // _REFILL_DIVISOR)
        if self.network.uses_static_cache(settings.cache):
            self._decoder: Decoder = StaticDecoder(self.network, settings.slots, self.context)
        else:
            self._decoder = Decoder(self.network, settings.slots)
        self._slots = self._decoder.batch
        self._recomputes_cache = settings.cache_at_update == "recompute"

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Queue a request. Requests with lower tickets are served first.

        Raises:
            ValueError: if the ticket is in use, the policy has no weights in this engine, or the chat template refuses
                the messages.
        """
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        chat = self.chat_tokenizer
        prompt = chat.prompt_with_prefix(request, self.policy_weights.policy_index(request.policy))
        forced_tokens = 0 if request.forced is None else len(chat.forced_ids(request.forced))
        self._tickets.add(ticket)
        if failure := context_overflow_failure(request, len(prompt.ids), forced_tokens, self.context):
            self._refused.append((ticket, failure))
            return
        max_tokens = max_completion_tokens(request, len(prompt.ids), self.context)
        thinking = thinking_budget_after_prefix(request, chat)
        job = SamplingJob(ticket, request, prompt, max_tokens, thinking, chat.token_spans_of_marks(request))
        heapq.heappush(self._queue, (ticket, job))

    @torch.inference_mode()
    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Cancel the requests with these `tickets`. No answers to cancelled requests follow."""
        cancelled = self._tickets.intersection(tickets)
        if not cancelled:
            return
        self._tickets -= cancelled
        self._refused = [answer for answer in self._refused if answer[0] not in cancelled]
        self._queue = [entry for entry in self._queue if entry[0] not in cancelled]
        heapq.heapify(self._queue)
        self._decoder.free_rows([row for row, job in enumerate(self._slots.jobs) if job.ticket in cancelled])

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Copy weights in place; active rows continue with the new weights (see `Completion.version_runs`).

        Raises:
            ValueError: if names, shapes or version differ, or another policy uses the engine's only weights.
        """
        check_shared_weights_version(policy, weights, version)
        self.policy_weights.load_weights(policy, weights, version)
        index = self.policy_weights.policy_index(policy)
        overtaken_rows = [row for row, job in enumerate(self._slots.jobs) if job.prompt.policy == index]
        for row in overtaken_rows:
            self._slots.jobs[row].record_version(int(self._slots.counts_S[row]), version)
        if self._recomputes_cache and overtaken_rows:
            self._decoder.recompute_keys_and_values(overtaken_rows)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add `policy`, which samples with the adapter `source`, or with the engine's initial weights."""
        self.policy_weights.add_policy(policy, source)
        self._decoder.forget_captured_steps()

    def remove_policy(self, policy: str) -> None:
        """Free the weights of `policy`.

        Raises:
            ValueError: if requests of the policy are in flight, or the policy has no weights in this engine.
        """
        check_no_open_requests(policy, [job.request for job in (*self._slots.jobs, *(job for _, job in self._queue))])
        self.policy_weights.remove_policy(policy)
        self._decoder.forget_captured_steps()

    @torch.inference_mode()
    def step(self, wait_s: float) -> list[Answer]:
        """Decode one token of every active row, after refilling free slots. Forced texts are scored at once."""
        answers, self._refused = self._refused, []
        forced, texts, sampled = list[SamplingJob](), list[tuple[int, ...]](), list[SamplingJob]()
        free = self._slots.size - len(self._slots.jobs)
        if free < self._refill:
            free = 0
        # A job that only scores a forced text needs no slot, but waits for jobs with lower tickets.
        while self._queue and (free or self._queue[0][1].request.forced is not None):
            job = heapq.heappop(self._queue)[1]
            job.version = self._decoder.current_weights_version(job)
            if job.request.forced is None:
                free -= 1
                sampled.append(job)
            else:
                forced.append(job)
                texts.append(self.chat_tokenizer.forced_ids(job.request.forced))
        if forced:
            scores = score_forced_texts(self.network, forced, texts)
            for job, ids, logprobs in zip(forced, texts, scores, strict=True):
                if np.isnan(logprobs).any():
                    raise nan_logits_error(job.request.policy, job.version)
                completion = job.to_completion(job.request.forced or "", ids, logprobs, "stop")
                answers.append((job.ticket, completion))
        if sampled or self._slots.jobs:
            answers += self._sample_next_tokens(sampled)
        self._tickets.difference_update(ticket for ticket, _ in answers)
        return answers

    def _sample_next_tokens(self, new_jobs: Sequence[SamplingJob]) -> list[Answer]:
        """Sample one token of every active row and every new job; return the completions that have ended."""
        slots = self._slots
        new_ids, new_logprobs = self._decoder.sample_next_tokens(new_jobs)
        rows = len(slots.jobs)
        if np.isnan(new_logprobs).any():
            job = slots.jobs[int(np.isnan(new_logprobs).argmax())]
            raise nan_logits_error(job.request.policy, self._decoder.current_weights_version(job))
        slots.append_tokens(new_ids, new_logprobs)
        # A completion ends at an end token, at a stop text, or at the maximum number of tokens.
        stopped_N = (new_ids[:, None] == self._ends_E).any(1)
        for row, job in enumerate(slots.jobs):
            if job.thinking is not None:
                job.thinking.record_last_token(slots.sampled_ids(row))
            if stop := job.request.sampling.stop:
                stopped_N[row] |= self.chat_tokenizer.ends_with_stop_text(stop, slots.sampled_ids(row))
        finished_rows = np.flatnonzero(stopped_N | (slots.counts_S[:rows] >= slots.limits_S[:rows])).tolist()
        answers: list[Answer] = []
        for row in finished_rows:
            job, token_ids = slots.jobs[row], tuple(slots.sampled_ids(row))
            logprobs = slots.logprobs_ST[row, : len(token_ids)].tolist()
            text = decode_completion(self.chat_tokenizer, job.request, job.prompt, token_ids)
            finish = "stop" if stopped_N[row] else "length"
            completion = job.to_completion(text, token_ids, logprobs, finish)
            answers.append((job.ticket, with_segments(completion, job.request, self.chat_tokenizer)))
        self._decoder.free_rows(finished_rows)
        return answers
