"""The engine that samples with Transformers: continuous batching in slots, refilled in ticket order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marl.engines.transformers.network import Network, score_texts
from marl.engines.transformers.sampling import Shaping, draw, log_distribution
from marl.engines.transformers.slots import SamplingJob, SlotCache, Slots
from marl.engines.transformers.thoughts import ThoughtLimit
from marl.models.chat_template import ChatTokenizer, Prompt
from marl.protocols import SharedWeights
from marl.types import Completion, Failure, Finish, Request, Ticket

if TYPE_CHECKING:
    from marl.engines.transformers.policy_weights import PolicyWeights
    from marl.engines.transformers.settings import Transformers
    from marl.protocols import ModelSource, Weights

_REFILL = 8
Answer = tuple[Ticket, Completion | Failure]


class Sampler:
    """One model with the weights of its policies, one tokenizer. Each `step` decodes one token of every active row."""

    def __init__(self, policy_weights: PolicyWeights, tokenizer: Any, settings: Transformers) -> None:
        """Check that model, tokenizer and settings fit together.

        Raises:
            ValueError: if they do not, or if the model's architecture cannot be decoded in slots.
        """
        model = policy_weights.model
        _check_vocabulary(model, tokenizer)
        self.policy_weights = policy_weights
        self.network = Network(policy_weights, settings.prefill_tokens)
        self.context = _context(model, settings.max_context)
        ends = _end_tokens(model, tokenizer)
        self.chat_tokenizer = ChatTokenizer(tokenizer, ends)
        self._ends_E = np.array(sorted(ends), np.int64)
        self._queue: list[tuple[Ticket, SamplingJob]] = []
        self._refused: list[Answer] = []
        self._tickets: set[Ticket] = set()
        self._slots = Slots(settings.slots)
        # A forward over one short prompt costs about as much as a step of all rows: let some slots gather first.
        self._refill = max(1, settings.slots // _REFILL)
        self._cache = SlotCache(self.network.layers, self.network.dtype)
        self._shaping: Shaping | None = None

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Queue a request; lower tickets are served first.

        Raises:
            ValueError: if the ticket is in use, the policy has no weights here, or the prompt cannot be made.
        """
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        prompt = self.chat_tokenizer.prompt(request, self.policy_weights.index(request.policy))
        forced = 0 if request.forced is None else len(self.chat_tokenizer.forced_ids(request.forced))
        room = self.context - len(prompt.ids)
        self._tickets.add(ticket)
        if room < max(forced, 1):
            tokens = f"{len(prompt.ids)} tokens of prompt" + (f" and {forced} of forced text" if forced else "")
            self._refused.append((ticket, Failure("overflow", f"{tokens}; the context holds {self.context}")))
        else:
            limit = min(request.sampling.max_tokens, room)
            thought = ThoughtLimit.of(request, self.chat_tokenizer)
            job = SamplingJob(ticket, request, prompt, limit, thought, self.chat_tokenizer.mark_tokens(request))
            heapq.heappush(self._queue, (ticket, job))

    @torch.inference_mode()
    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; no answer follows."""
        cancelled = self._tickets.intersection(tickets)
        if not cancelled:
            return
        self._tickets -= cancelled
        self._refused = [answer for answer in self._refused if answer[0] not in cancelled]
        self._queue = [entry for entry in self._queue if entry[0] not in cancelled]
        heapq.heapify(self._queue)
        self._free([row for row, job in enumerate(self._slots.jobs) if job.ticket in cancelled])

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Copy weights in place; rows that are being decoded go on with the new ones (see `Completion.versions`).

        Raises:
            ValueError: if they do not fit, are of another version, or if the weights held here are another policy's.
        """
        if isinstance(weights, SharedWeights) and weights.version != version:
            raise ValueError(f"{weights.file} holds version {weights.version} of {policy!r}, not version {version}")
        self.policy_weights.load(policy, weights, version)

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Hold a further adapter on the same base; without adapters, only a policy with the same weights fits."""
        self.policy_weights.add(policy, source)

    def remove_policy(self, policy: str) -> None:
        """Free the weights of a policy.

        Raises:
            ValueError: if its requests are in flight, or if it has no weights here.
        """
        jobs = [*self._slots.jobs, *(job for _, job in self._queue)]
        if many := sum(job.request.policy == policy for job in jobs):
            raise ValueError(f"policy {policy!r} has {many} requests in flight; cancel them before it is removed")
        self.policy_weights.remove(policy)

    @torch.inference_mode()
    def step(self, wait_s: float) -> list[Answer]:
        """Decode one token of every active row, after refilling free slots; score forced texts whole."""
        answers, self._refused = self._refused, []
        jobs = self._next_jobs()
        answers += self._score_forced([job for job in jobs if job.request.forced is not None])
        answers += self._decode([job for job in jobs if job.request.forced is None])
        self._tickets.difference_update(ticket for ticket, _ in answers)
        return answers

    def _next_jobs(self) -> list[SamplingJob]:
        """Return requests to start now: as many as there are free slots, and every forced text before these."""
        jobs: list[SamplingJob] = []
        free = self._slots.free if self._slots.free >= self._refill else 0
        while self._queue and (free or self._queue[0][1].request.forced is not None):
            job = heapq.heappop(self._queue)[1]
            free -= job.request.forced is None
            jobs.append(job)
        return jobs

    def _score_forced(self, jobs: Sequence[SamplingJob]) -> list[Answer]:
        if not jobs:
            return []
        texts = [self.chat_tokenizer.forced_ids(job.request.forced or "") for job in jobs]
        versions = [(self._version(job), self._version(job)) for job in jobs]
        rows = zip(jobs, texts, score_texts(self.network, jobs, texts), versions, strict=True)
        return [
            (job.ticket, job.completion(job.request.forced or "", ids, logprobs, "stop", version))
            for job, ids, logprobs, version in rows
        ]

    def _decode(self, new: Sequence[SamplingJob]) -> list[Answer]:
        old = len(self._slots.jobs)
        parts = [self._next_logits(old)] if old else []
        if new:
            parts.append(self._start_rows(new))
        if not parts:
            return []
        logits_NV = torch.cat(parts) if len(parts) > 1 else parts[0]
        if self._shaping is None:
            self._shaping = Shaping.of([job.request.sampling for job in self._slots.jobs], self.network.device)
        uniforms_N = torch.from_numpy(self._slots.uniforms()).to(self.network.device)
        logprobs_NV = log_distribution(logits_NV, self._shaping)
        tokens_N, logprobs_N = draw(logprobs_NV, uniforms_N)
        for row, job in enumerate(self._slots.jobs):
            if job.thought is not None and (token := job.thought.next_token) is not None:
                tokens_N[row], logprobs_N[row] = token, logprobs_NV[row, token]
        return self._finish_rows(tokens_N, logprobs_N)

    def _next_logits(self, rows: int) -> Tensor:
        """Return logits [N, V] after the last token of each row."""
        slots, device = self._slots, self.network.device
        ids_NQ = torch.from_numpy(slots.last(rows)[:, None]).to(device)
        positions_NQ = torch.tensor(slots.lengths_S[:rows, None], device=device)
        slots.lengths_S[:rows] += 1
        length = int(slots.lengths_S[:rows].max())
        return self.network.extend(self._cache, ids_NQ, positions_NQ, length, slots.policies_S[:rows])[:, -1]

    def _start_rows(self, jobs: Sequence[SamplingJob]) -> Tensor:
        """Put jobs into slots and read their prompts; return logits [N, V] of their first tokens."""
        held = {job.prompt: row for row, job in enumerate(self._slots.jobs) if job.version == self._version(job)}
        rows_of: dict[Prompt, list[int]] = {}
        for row, job in enumerate(jobs):
            job.version = self._version(job)
            rows_of.setdefault(job.prompt, []).append(row)
        first = len(self._slots.jobs)
        for prompt in [prompt for prompt in rows_of if prompt in held]:
            self._share(held[prompt], jobs, rows_of.pop(prompt))
        self._read(list(rows_of.items()), jobs)
        self._slots.admit(jobs)
        self._shaping = None
        return torch.stack([job.logits_V for job in self._slots.jobs[first:] if job.logits_V is not None])

    def _share(self, slot: int, jobs: Sequence[SamplingJob], rows: list[int]) -> None:
        """Copy a prompt that an active row still holds."""
        first, source = len(self._slots.jobs), self._slots.jobs[slot]
        self._cache.move([slot] * len(rows), [first + row for row in rows], len(source.prompt.ids))
        for row in rows:
            jobs[row].logits_V = source.logits_V

    def _read(self, unread: list[tuple[Prompt, list[int]]], jobs: Sequence[SamplingJob]) -> None:
        """Prefill prompts and copy them to all rows that start with them."""
        first = len(self._slots.jobs)
        for batch in self.network.batches([prompt for prompt, _ in unread]):
            kv, logits_PV = self.network.prefill([unread[index][0] for index in batch])
            pairs = [(source, row) for source, index in enumerate(batch) for row in unread[index][1]]
            self._cache.store(kv, [source for source, _ in pairs], [first + row for _, row in pairs])
            first_logits = logits_PV.unbind()
            for source, row in pairs:
                jobs[row].logits_V = first_logits[source]

    def _finish_rows(self, tokens_N: Tensor, logprobs_N: Tensor) -> list[Answer]:
        """Record a token for every row; take out the rows that are done."""
        slots = self._slots
        sampled_N, logprobs = tokens_N.numpy(force=True), logprobs_N.numpy(force=True)
        if np.isnan(logprobs).any():
            job = slots.jobs[int(np.isnan(logprobs).argmax())]
            raise FloatingPointError(
                f"version {self._version(job)} of the weights of policy {job.request.policy!r} gives logits that are "
                "not numbers"
            )
        slots.record(sampled_N, logprobs)
        rows = len(slots.jobs)
        stopped_N = (sampled_N[:, None] == self._ends_E).any(1)
        for row, job in enumerate(slots.jobs):
            if job.thought is not None:
                job.thought.follow(slots.ids(row))
            if stop := job.request.sampling.stop:
                stopped_N[row] |= self.chat_tokenizer.reaches_stop(stop, slots.ids(row))
        done = np.flatnonzero(stopped_N | (slots.counts_S[:rows] >= slots.limits_S[:rows])).tolist()
        answers = [self._answer(row, "stop" if stopped_N[row] else "length") for row in done]
        self._free(done)
        return answers

    def _answer(self, row: int, finish: Finish) -> Answer:
        slots = self._slots
        job, count = slots.jobs[row], slots.counts_S[row]
        token_ids = tuple(slots.tokens_ST[row, :count].tolist())
        logprobs = tuple(slots.logprobs_ST[row, :count].tolist())
        text = self.chat_tokenizer.opening + self.chat_tokenizer.text(token_ids)
        if job.request.sampling.stop:
            text = self.chat_tokenizer.cut_at_stop(job.request.sampling.stop, text)
        versions = (job.version, self._version(job))
        return job.ticket, job.completion(text, token_ids, logprobs, finish, versions)

    def _version(self, job: SamplingJob) -> int:
        return self.policy_weights.versions[job.prompt.policy]

    def _free(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        sources, targets = self._slots.remove(rows)
        if targets:
            self._cache.move(sources, targets, int(self._slots.lengths_S[targets].max()))
        self._shaping = None


def _context(model: Any, max_context: int | None) -> int:
    longest: int = model.config.get_text_config().max_position_embeddings
    if max_context is not None and max_context > longest:
        raise ValueError(f"max_context: {max_context} tokens, but the model was made for {longest}")
    return max_context or longest


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, but {type(model).__name__} embeds {rows}")


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a completion, as the model and the tokenizer declare them."""
    declared = model.generation_config.eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    return frozenset(token for token in (*ids, tokenizer.eos_token_id) if token is not None)
