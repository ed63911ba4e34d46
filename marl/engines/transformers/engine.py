"""The engine that samples with Transformers: continuous batching in slots, refilled in ticket order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from marl.core.types import Completion, Failure, Finish, Request, Ticket
from marl.engines.thinking_budget import ThinkingBudget
from marl.engines.token_engine import (
    check_idle,
    check_version,
    completed_text,
    context_length,
    end_tokens,
    nan_error,
    overflow,
)
from marl.engines.transformers.model_runner import ModelRunner, score_texts
from marl.engines.transformers.policy_weights import PolicyWeights
from marl.engines.transformers.sampling import SamplingTensors, draw, log_distribution
from marl.engines.transformers.slots import DecodeBatch, SamplingJob, SlotCache
from marl.models.chat_template import ChatTokenizer, Prompt
from marl.protocols import ModelSource, Weights

_REFILL = 8
"""Share of the slots, as 1 / `_REFILL`, that must be free before new prompts are read."""
Answer = tuple[Ticket, Completion | Failure]


class SamplerOptions(Protocol):
    """Settings of the engine. `Transformers` explains every field."""

    slots: int
    max_context: int | None
    prefill_tokens: int


class TransformersEngine:
    """One model with the weights of several policies, and one tokenizer. Each step decodes one token of every row."""

    def __init__(self, policy_weights: PolicyWeights, tokenizer: Any, settings: SamplerOptions) -> None:
        """Check that model, tokenizer and settings fit together.

        Raises:
            ValueError: if they do not, or if the model's architecture cannot be decoded in slots.
        """
        model = policy_weights.model
        embedded = model.get_input_embeddings().weight.shape[0]
        if len(tokenizer) > embedded:
            raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, but {type(model).__name__} embeds {embedded}")
        self.policy_weights = policy_weights
        self.network = ModelRunner(policy_weights, settings.prefill_tokens)
        self.context = context_length(model.config, settings.max_context)
        ends = end_tokens(model.generation_config.eos_token_id, tokenizer)
        self.chat_tokenizer = ChatTokenizer(tokenizer, ends)
        self._ends_E = np.array(sorted(ends), np.int64)
        self._queue: list[tuple[Ticket, SamplingJob]] = []
        self._refused: list[Answer] = []
        self._tickets: set[Ticket] = set()
        self._slots = DecodeBatch(settings.slots)
        # A forward over one short prompt costs about as much as a step of all rows: let some slots gather first.
        self._refill = max(1, settings.slots // _REFILL)
        self._cache = SlotCache(self.network.layers, self.network.dtype)
        # Sampling settings of the active rows as tensors; None after a change of rows.
        self._shaping: SamplingTensors | None = None

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Queue a request; lower tickets are served first.

        Raises:
            ValueError: if the ticket is in use, the policy has no weights in this engine, or the chat template refuses
                the messages.
        """
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        chat = self.chat_tokenizer
        prompt = chat.prompt(request, self.policy_weights.index(request.policy))
        forced_tokens = 0 if request.forced is None else len(chat.forced_ids(request.forced))
        self._tickets.add(ticket)
        if failure := overflow(len(prompt.ids), forced_tokens, self.context):
            self._refused.append((ticket, failure))
            return
        max_tokens = min(request.sampling.max_tokens, self.context - len(prompt.ids))
        thinking = ThinkingBudget.of(request, chat)
        job = SamplingJob(ticket, request, prompt, max_tokens, thinking, chat.mark_token_spans(request))
        heapq.heappush(self._queue, (ticket, job))

    @torch.inference_mode()
    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests; no answer follows."""
        cancelled = self._tickets.intersection(tickets)
        if not cancelled:
            return
        self._tickets -= cancelled
        self._refused = [answer for answer in self._refused if answer[0] not in cancelled]
        self._queue = [entry for entry in self._queue if entry[0] not in cancelled]
        heapq.heapify(self._queue)
        self._free([row for row, job in enumerate(self._slots.jobs) if job.ticket in cancelled])

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Copy weights in place; active rows continue with the new weights (see `Completion.versions`).

        Raises:
            ValueError: if names, shapes or version differ, or another policy uses the engine's only weights.
        """
        check_version(policy, weights, version)
        self.policy_weights.load(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add an adapter on the same base; without adapters, only a policy with equal weights can be added."""
        self.policy_weights.add(policy, source)

    def remove_policy(self, policy: str) -> None:
        """Free the weights of a policy.

        Raises:
            ValueError: if requests of the policy are in flight, or the policy has no weights in this engine.
        """
        check_idle(policy, [job.request for job in (*self._slots.jobs, *(job for _, job in self._queue))])
        self.policy_weights.remove(policy)

    @torch.inference_mode()
    def step(self, wait_s: float) -> list[Answer]:
        """Decode one token of every active row, after refilling free slots. Forced texts are scored at once."""
        answers, self._refused = self._refused, []
        forced, sampled = self._next_jobs()
        if forced:
            texts = [self.chat_tokenizer.forced_ids(job.request.forced or "") for job in forced]
            for job in forced:
                job.version = self._version(job)
            scores = score_texts(self.network, forced, texts)
            for job, ids, logprobs in zip(forced, texts, scores, strict=True):
                completion = job.finished(job.request.forced or "", ids, logprobs, "stop", job.version)
                answers.append((job.ticket, completion))
        if sampled or self._slots.jobs:
            answers += self._decode(sampled)
        self._tickets.difference_update(ticket for ticket, _ in answers)
        return answers

    def _next_jobs(self) -> tuple[list[SamplingJob], list[SamplingJob]]:
        """Return the jobs to start now: forced texts, and one job to sample for each free slot."""
        forced: list[SamplingJob] = []
        sampled: list[SamplingJob] = []
        free = self._slots.free if self._slots.free >= self._refill else 0
        # Forced texts take no slot, but never overtake a job with a lower ticket.
        while self._queue and (free or self._queue[0][1].request.forced is not None):
            job = heapq.heappop(self._queue)[1]
            if job.request.forced is None:
                free -= 1
                sampled.append(job)
            else:
                forced.append(job)
        return forced, sampled

    def _decode(self, new_jobs: Sequence[SamplingJob]) -> list[Answer]:
        """Sample one token of every active row and the first token of every new job; return finished completions."""
        slots, device, rows = self._slots, self.network.device, len(self._slots.jobs)
        logits: list[Tensor] = []
        if rows:
            ids_NQ = torch.from_numpy(slots.last(rows)[:, None]).to(device)
            # A copy: `from_numpy` would share memory with the lengths, which the next line increments.
            positions_NQ = torch.tensor(slots.lengths_S[:rows, None], device=device)
            slots.lengths_S[:rows] += 1
            length = int(slots.lengths_S[:rows].max())
            policies = slots.policies_S[:rows]
            logits.append(self.network.decode(self._cache, ids_NQ, positions_NQ, length, policies)[:, -1])
        if new_jobs:
            logits.append(self._start_rows(new_jobs))
        logits_NV = torch.cat(logits) if len(logits) > 1 else logits[0]
        if self._shaping is None:
            self._shaping = SamplingTensors.of([job.request.sampling for job in slots.jobs], device)
        uniforms_N = torch.from_numpy(slots.uniforms()).to(device)
        logprobs_NV = log_distribution(logits_NV, self._shaping)
        tokens_N, logprobs_N = draw(logprobs_NV, uniforms_N)
        for row, job in enumerate(slots.jobs):
            if job.thinking is not None and (token := job.thinking.next_token) is not None:
                tokens_N[row], logprobs_N[row] = token, logprobs_NV[row, token]
        return self._finish_rows(tokens_N, logprobs_N)

    def _start_rows(self, jobs: Sequence[SamplingJob]) -> Tensor:
        """Move jobs into slots and read their prompts; return logits [N, V] of their first tokens."""
        slots = self._slots
        # A prompt can be copied from an active row with the same weights; a later version would read it differently.
        cached = {job.prompt: row for row, job in enumerate(slots.jobs) if job.version == self._version(job)}
        rows_of: dict[Prompt, list[int]] = {}
        for row, job in enumerate(jobs):
            job.version = self._version(job)
            rows_of.setdefault(job.prompt, []).append(row)
        first = len(slots.jobs)
        unread: list[tuple[Prompt, list[int]]] = []
        for prompt, rows in rows_of.items():
            if prompt not in cached:
                unread.append((prompt, rows))
                continue
            source = cached[prompt]
            self._cache.move([source] * len(rows), [first + row for row in rows], len(prompt.ids))
            for row in rows:
                jobs[row].logits_V = slots.jobs[source].logits_V
        for batch in self.network.batches([prompt for prompt, _ in unread]):
            kv, logits_PV = self.network.prefill([unread[index][0] for index in batch])
            first_logits = logits_PV.unbind()
            sources: list[int] = []
            targets: list[int] = []
            for source, index in enumerate(batch):
                for row in unread[index][1]:
                    sources.append(source)
                    targets.append(first + row)
                    jobs[row].logits_V = first_logits[source]
            self._cache.store(kv, sources, targets)
        slots.admit(jobs)
        self._shaping = None
        return torch.stack([job.logits_V for job in slots.jobs[first:] if job.logits_V is not None])

    def _finish_rows(self, tokens_N: Tensor, logprobs_N: Tensor) -> list[Answer]:
        """Record one token of every row; free finished rows and return their completions."""
        slots = self._slots
        sampled_N, logprobs = tokens_N.numpy(force=True), logprobs_N.numpy(force=True)
        if np.isnan(logprobs).any():
            job = slots.jobs[int(np.isnan(logprobs).argmax())]
            raise nan_error(job.request.policy, self._version(job))
        slots.record(sampled_N, logprobs)
        rows = len(slots.jobs)
        stopped_N = (sampled_N[:, None] == self._ends_E).any(1)
        for row, job in enumerate(slots.jobs):
            if job.thinking is not None:
                job.thinking.update(slots.ids(row))
            if stop := job.request.sampling.stop:
                stopped_N[row] |= self.chat_tokenizer.reaches_stop(stop, slots.ids(row))
        done = np.flatnonzero(stopped_N | (slots.counts_S[:rows] >= slots.limits_S[:rows])).tolist()
        answers = [self._answer(row, "stop" if stopped_N[row] else "length") for row in done]
        self._free(done)
        return answers

    def _answer(self, row: int, finish: Finish) -> Answer:
        """Return the ticket and the completion of a finished row."""
        slots = self._slots
        job, count = slots.jobs[row], slots.counts_S[row]
        token_ids = tuple(slots.tokens_ST[row, :count].tolist())
        logprobs = slots.logprobs_ST[row, :count].tolist()
        text = completed_text(self.chat_tokenizer, token_ids, job.request.sampling.stop)
        return job.ticket, job.finished(text, token_ids, logprobs, finish, self._version(job))

    def _version(self, job: SamplingJob) -> int:
        return self.policy_weights.versions[job.prompt.policy]

    def _free(self, rows: Sequence[int]) -> None:
        """Free rows; the last rows move into the gaps, so that active rows stay contiguous."""
        if not rows:
            return
        sources, targets = self._slots.remove(rows)
        if targets:
            self._cache.move(sources, targets, int(self._slots.lengths_S[targets].max()))
        self._shaping = None
