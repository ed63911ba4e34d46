"""Sampling of the next token of every active row, in tensors as large as the active rows (`cache: dynamic`).

Shape suffixes: N = rows, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marl.engines.transformers.model_runner import ModelRunner
from marl.engines.transformers.sampling import SamplingTensors, draw_tokens, next_token_logprobs, uniform_random_numbers
from marl.engines.transformers.slots import DecodeBatch, SamplingJob, SlotCache
from marl.models.chat_template import Prompt

TokensAndLogprobs = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Sampled token [N] of each active row, and its log-probability [N] in nats."""


class Decoder:
    """Active rows with their key-value cache. Each step samples one token of every active row and of every new job."""

    def __init__(self, network: ModelRunner, slots: int) -> None:
        self.network = network
        self.batch = DecodeBatch(slots)
        self.cache = SlotCache(network.layers, network.dtype)
        self._sampling: SamplingTensors | None = None
        """Sampling settings of the active rows, or None if the rows have changed since."""

    def sample_next_tokens(self, new_jobs: Sequence[SamplingJob]) -> TokensAndLogprobs:
        """Sample the next token of every active row, and the first one of each of `new_jobs`, which become rows."""
        batch, device, rows = self.batch, self.network.device, len(self.batch.jobs)
        logits: list[Tensor] = []
        if rows:
            ids_NQ = torch.from_numpy(batch.last_tokens()[:, None]).to(device)
            # The positions are a copy, because `from_numpy` would share the array that the next line changes.
            positions_NQ = torch.tensor(batch.lengths_S[:rows, None], device=device)
            batch.lengths_S[:rows] += 1
            length = int(batch.lengths_S[:rows].max())
            policies_N = batch.policies_S[:rows]
            logits.append(self.network.decode(self.cache, ids_NQ, positions_NQ, length, policies_N)[:, -1])
        if new_jobs:
            logits.append(self.prefill_rows(new_jobs))
        logits_NV = torch.cat(logits) if len(logits) > 1 else logits[0]
        if self._sampling is None:
            self._sampling = SamplingTensors.from_settings([job.request.sampling for job in batch.jobs], device)
        tokens_N, logprobs_N = self._draw(logits_NV, self._sampling, batch.imposed_tokens(), first_row=0)
        return tokens_N.numpy(force=True), logprobs_N.numpy(force=True)

    def _draw(
        self, logits_NV: Tensor, sampling: SamplingTensors, imposed_S: NDArray[np.int64] | None, *, first_row: int
    ) -> tuple[Tensor, Tensor]:
        """Draw a token for each row from `first_row` on; return the ids [N] and their log-probabilities [N]."""
        rows, device = slice(first_row, first_row + len(logits_NV)), self.network.device
        uniforms_N = uniform_random_numbers(self.batch.counters_S[rows], self.batch.counts_S[rows])
        imposed_N = None if imposed_S is None else torch.from_numpy(imposed_S[rows]).to(device)
        return draw_tokens(next_token_logprobs(logits_NV, sampling), torch.from_numpy(uniforms_N).to(device), imposed_N)

    def prefill_rows(self, jobs: Sequence[SamplingJob]) -> Tensor:
        """Move `jobs` into rows and read the prompts. Return the logits [N, V] of the first token of each job."""
        batch, first = self.batch, len(self.batch.jobs)
        # A prompt's keys and values are copied from an active row with the same prompt and weights version.
        # Rows of other versions do not count, because other weights compute other keys and values.
        cached: dict[Prompt, int] = {}
        for row, job in enumerate(batch.jobs):
            if job.version == self.current_weights_version(job):
                cached[job.prompt] = row
        jobs_by_prompt: dict[Prompt, dict[int, SamplingJob]] = {}
        for row, job in enumerate(jobs, first):
            jobs_by_prompt.setdefault(job.prompt, {})[row] = job
        for prompt in list(filter(cached.__contains__, jobs_by_prompt)):
            source, rows = cached[prompt], jobs_by_prompt.pop(prompt)
            self.cache.copy_slots([source] * len(rows), list(rows), len(prompt.ids))
            for job in rows.values():
                job.logits_V = batch.jobs[source].logits_V
        unread_prompts = list(jobs_by_prompt)
        for indices in self.network.prefill_batch_indices(unread_prompts):
            prompts = [unread_prompts[index] for index in indices]
            kv, logits_PV = self.network.prefill(prompts)
            sources, targets = list[int](), list[int]()
            for source, (prompt, logits_V) in enumerate(zip(prompts, logits_PV.unbind(), strict=True)):
                for row, job in jobs_by_prompt[prompt].items():
                    sources.append(source)
                    targets.append(row)
                    job.logits_V = logits_V
            self.cache.store_prefilled(kv, sources, targets)
        batch.add_rows(jobs)
        self._sampling = None
        return torch.stack([job.logits_V for job in jobs if job.logits_V is not None])

    @torch.inference_mode()
    def recompute_keys_and_values(self, rows: Sequence[int]) -> None:
        """Replace the cached keys and values of `rows` by those of the current weights."""
        batch, texts = self.batch, list[Prompt]()
        for row in rows:
            prompt = batch.jobs[row].prompt
            # The last token is not in the cache yet: the next step reads it.
            ids = (*batch.jobs[row].prompt_ids, *batch.sampled_ids(row)[:-1])
            texts.append(Prompt(ids, prompt.policy))
        for indices in self.network.prefill_batch_indices(texts):
            kv, _ = self.network.prefill([texts[index] for index in indices])
            self.cache.store_prefilled(kv, list(range(len(indices))), [rows[index] for index in indices])

    def current_weights_version(self, job: SamplingJob) -> int:
        """Return the version of the weights that sample the next token of `job`."""
        return self.network.policy_weights.versions[job.prompt.policy]

    def free_rows(self, rows: Sequence[int]) -> None:
        """Free `rows`. The last rows move into the gaps, so that active rows stay contiguous."""
        if not rows:
            return
        sources, targets = self.batch.remove_rows(rows)
        if targets:
            self.cache.copy_slots(sources, targets, int(self.batch.lengths_S[targets].max()))
        self._sampling = None

    def forget_captured_steps(self) -> None:
        """Discard what depends on the tensors of the model's adapters, after adapters were added or removed."""
