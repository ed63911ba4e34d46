"""The engine that samples with Transformers: continuous batching in slots, refilled in ticket order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from marl.engines.transformers.network import Network
from marl.engines.transformers.policy_weights import Solo, Voices
from marl.engines.transformers.sampling import Shaping, drawn, log_distribution
from marl.engines.transformers.scoring import scores
from marl.engines.transformers.slots import Job, Slots
from marl.models.chat_template import Prompt, Prompts, Stops
from marl.types import Completion, Failure, Finish, Request, Ticket

if TYPE_CHECKING:
    from marl.engines.transformers.settings import Transformers
    from marl.protocols import Weights

_REFILL = 8
Answer = tuple[Ticket, Completion | Failure]


class Sampler:
    """One model, one tokenizer. Each `step` decodes one token of every active row."""

    def __init__(self, model: Any, tokenizer: Any, settings: Transformers, voices: Voices | None = None) -> None:
        _check_vocabulary(model, tokenizer)
        self.voices = voices or Solo(model)
        self.network = Network(self.voices, settings.prefill_tokens)
        self.context = _context(model, settings.max_context)
        ends = _ends(model, tokenizer)
        self.prompts = Prompts(tokenizer, ends)
        self.stops = Stops(self.prompts)
        self._ends_E = np.array(sorted(ends), np.int64)
        self._queue: list[tuple[Ticket, Job]] = []
        self._refused: list[Answer] = []
        self._tickets: set[Ticket] = set()
        self._slots = Slots(settings.slots)
        # A forward over one short prompt costs about as much as a step of all rows: let some slots gather first.
        self._refill = max(1, settings.slots // _REFILL)
        self._cache = self.network.cache()
        self._shaping: Shaping | None = None

    def submit(self, ticket: Ticket, request: Request) -> None:
        """Take a request; lower tickets are served first."""
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} was submitted before and has not been answered")
        prompt = self.prompts.prompt(request, self.voices.of(request.policy))
        forced = 0 if request.forced is None else len(self.prompts.forced(request.forced))
        room = self.context - len(prompt.ids)
        self._tickets.add(ticket)
        if room < max(forced, 1):
            tokens = f"{len(prompt.ids)} tokens of prompt" + (f" and {forced} of forced text" if forced else "")
            self._refused.append((ticket, Failure("overflow", f"{tokens}; the context holds {self.context}")))
        else:
            job = Job(ticket, request, prompt, min(request.sampling.max_tokens, room))
            heapq.heappush(self._queue, (ticket, job))

    @torch.inference_mode()
    def cancel(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; no answer follows."""
        gone = self._tickets.intersection(tickets)
        if not gone:
            return
        self._tickets -= gone
        self._refused = [answer for answer in self._refused if answer[0] not in gone]
        self._queue = [entry for entry in self._queue if entry[0] not in gone]
        heapq.heapify(self._queue)
        self._free([row for row, job in enumerate(self._slots.jobs) if job.ticket in gone])

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Copy weights in place. What is being said goes on with the new ones (see `Completion.versions`).

        Raises:
            ValueError: if they do not fit, or if those held here are another policy's.
        """
        self.voices.load(policy, weights, version)

    @torch.inference_mode()
    def step(self, wait_s: float) -> list[Answer]:
        """One token for every active row, after refilling free slots; forced texts are scored whole."""
        answers, self._refused = self._refused, []
        jobs = self._next_jobs()
        answers += self._scored([job for job in jobs if job.request.forced is not None])
        answers += self._decoded([job for job in jobs if job.request.forced is None])
        self._tickets.difference_update(ticket for ticket, _ in answers)
        return answers

    def _next_jobs(self) -> list[Job]:
        """Requests to start now: as many as there are free slots, and every forced text on the way."""
        jobs: list[Job] = []
        free = self._slots.free if self._slots.free >= self._refill else 0
        while self._queue and (free or self._queue[0][1].request.forced is not None):
            job = heapq.heappop(self._queue)[1]
            free -= job.request.forced is None
            jobs.append(job)
        return jobs

    def _scored(self, jobs: Sequence[Job]) -> list[Answer]:
        if not jobs:
            return []
        said = [self.prompts.forced(job.request.forced or "") for job in jobs]
        now = [(self._version(job), self._version(job)) for job in jobs]
        return [
            (job.ticket, Completion(job.request.forced or "", job.prompt.ids, ids, logprobs, "stop", versions))
            for job, ids, logprobs, versions in zip(jobs, said, scores(self.network, jobs, said), now, strict=True)
        ]

    def _decoded(self, new: Sequence[Job]) -> list[Answer]:
        old = len(self._slots.jobs)
        parts = [self._continued(old)] if old else []
        if new:
            parts.append(self._started(new))
        if not parts:
            return []
        logits_NV = torch.cat(parts) if len(parts) > 1 else parts[0]
        if self._shaping is None:
            self._shaping = Shaping.of([job.request.sampling for job in self._slots.jobs], self.network.device)
        uniforms_N = torch.from_numpy(self._slots.uniforms()).to(self.network.device)
        tokens_N, logprobs_N = drawn(log_distribution(logits_NV, self._shaping), uniforms_N)
        return self._finished(tokens_N, logprobs_N)

    def _continued(self, rows: int) -> Tensor:
        """Logits [rows, V] after the last token of each row."""
        slots, device = self._slots, self.network.device
        ids_NQ = torch.from_numpy(slots.last(rows)[:, None]).to(device)
        positions_NQ = torch.tensor(slots.lengths_S[:rows, None], device=device)
        slots.lengths_S[:rows] += 1
        length = int(slots.lengths_S[:rows].max())
        return self.network.extend(self._cache, ids_NQ, positions_NQ, length, slots.voices_S[:rows])[:, -1]

    def _started(self, jobs: Sequence[Job]) -> Tensor:
        """Give jobs their slots and prompts; logits [N, V] of their first tokens."""
        held = {job.prompt: row for row, job in enumerate(self._slots.jobs) if job.version == self._version(job)}
        wanted: dict[Prompt, list[int]] = {}
        for row, job in enumerate(jobs):
            job.version = self._version(job)
            wanted.setdefault(job.prompt, []).append(row)
        first = len(self._slots.jobs)
        for prompt in [prompt for prompt in wanted if prompt in held]:
            self._share(held[prompt], jobs, wanted.pop(prompt))
        self._read(list(wanted.items()), jobs)
        self._slots.admit(jobs)
        self._shaping = None
        return torch.stack([job.logits_V for job in self._slots.jobs[first:] if job.logits_V is not None])

    def _share(self, slot: int, jobs: Sequence[Job], rows: list[int]) -> None:
        """Copy a prompt that an active row still holds."""
        first, source = len(self._slots.jobs), self._slots.jobs[slot]
        self._cache.move([slot] * len(rows), [first + row for row in rows], len(source.prompt.ids))
        for row in rows:
            jobs[row].logits_V = source.logits_V

    def _read(self, wanted: list[tuple[Prompt, list[int]]], jobs: Sequence[Job]) -> None:
        """Prefill prompts and copy them to all rows that start with them."""
        first = len(self._slots.jobs)
        for batch in self.network.batches([prompt for prompt, _ in wanted]):
            prefilled = self.network.prefill([wanted[index][0] for index in batch])
            pairs = [(source, row) for source, index in enumerate(batch) for row in wanted[index][1]]
            self._cache.store(prefilled.kv, [source for source, _ in pairs], [first + row for _, row in pairs])
            logits = prefilled.logits_PV.unbind()
            for source, row in pairs:
                jobs[row].logits_V = logits[source]

    def _finished(self, tokens_N: Tensor, logprobs_N: Tensor) -> list[Answer]:
        """Record a token for every row; take out the rows that are done."""
        slots = self._slots
        said_N, logprobs = tokens_N.numpy(force=True), logprobs_N.numpy(force=True)
        if np.isnan(logprobs).any():
            job = slots.jobs[int(np.isnan(logprobs).argmax())]
            raise FloatingPointError(
                f"version {self._version(job)} of the weights of policy {job.request.policy!r} gives logits that are "
                "not numbers"
            )
        slots.record(said_N, logprobs)
        rows = len(slots.jobs)
        stopped_N = (said_N[:, None] == self._ends_E).any(1)
        for row in [row for row, job in enumerate(slots.jobs) if job.request.sampling.stop]:
            said = slots.tokens_ST[row, : slots.counts_S[row]].tolist()
            stopped_N[row] |= self.stops.found(slots.jobs[row].request.sampling.stop, said)
        done = np.flatnonzero(stopped_N | (slots.counts_S[:rows] >= slots.limits_S[:rows])).tolist()
        answers = [self._answer(row, "stop" if stopped_N[row] else "length") for row in done]
        self._free(done)
        return answers

    def _answer(self, row: int, finish: Finish) -> Answer:
        slots = self._slots
        job, count = slots.jobs[row], slots.counts_S[row]
        token_ids = tuple(slots.tokens_ST[row, :count].tolist())
        logprobs = tuple(slots.logprobs_ST[row, :count].tolist())
        text = self.prompts.text(token_ids)
        if job.request.sampling.stop:
            text = self.stops.cut(job.request.sampling.stop, text)
        versions = (job.version, self._version(job))
        return job.ticket, Completion(text, job.prompt.ids, token_ids, logprobs, finish, versions)

    def _version(self, job: Job) -> int:
        return self.voices.versions[job.prompt.voice]

    def _free(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        sources, targets = self._slots.remove(rows)
        if targets:
            self._cache.move(sources, targets, int(self._slots.lengths_S[targets].max()))
        self._shaping = None


def _context(model: Any, wanted: int | None) -> int:
    most: int = model.config.get_text_config().max_position_embeddings
    if wanted is not None and wanted > most:
        raise ValueError(f"max_context: {wanted} tokens, but the model was made for {most}")
    return wanted or most


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, but {type(model).__name__} embeds {rows}")


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a completion, as the model and the tokenizer declare them."""
    declared = model.generation_config.eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    return frozenset(token for token in (*ids, tokenizer.eos_token_id) if token is not None)
