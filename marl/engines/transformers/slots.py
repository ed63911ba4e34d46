"""Slots for rows that are decoded together: the key-value cache, and requests and tokens on the host.

Shape suffixes: S = slots, N = rows in use, H = heads, C = capacity and L = length in tokens, Q = new tokens, D = width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from marl.engines.token_engine import OpenTokenRequest
from marl.engines.transformers.memory import INITIAL_SLOT_CAPACITY
from marl.engines.transformers.sampling import random_counters_from_seeds


class CacheSection:
    """Section of the key-value cache used by one forward, in all layers: rows [0, rows), positions [0, length)."""

    def __init__(self) -> None:
        self.rows = self.length = self.capacity = 0
        self.positions_NQ = torch.empty(0, 0, dtype=torch.long)
        """Position in the cache of each row's new tokens."""
        self.targets: dict[int, Tensor] = {}
        """Number of heads -> for each new key [N, H, Q], flattened: (row * heads + head) * capacity + position."""


class SlotCacheLayer(DynamicLayer):
    """Key-value cache of one layer: `kv` holds keys and values, each [S, H, C, D], contiguous for each head."""

    def __init__(self, window: CacheSection, dtype: torch.dtype) -> None:
        super().__init__()
        self.window, self.dtype = window, dtype
        self.kv: tuple[Tensor, ...] = ()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Create empty tensors with the heads and widths of keys and values [N, H, L, D]; allocate no slots yet."""
        self.is_initialized = True
        # Keys and values may differ in width, so their tensors are made separately.
        pair = (key_states, value_states)
        self.kv = tuple(states.new_zeros(0, states.shape[1], 0, states.shape[3], dtype=self.dtype) for states in pair)

    def resize(self, slot_count: int, token_capacity: int) -> None:
        """Grow the layer's cache to `slot_count` rows of `token_capacity` tokens, and copy the contents."""
        grown = []
        for old_SHCD in self.kv:
            # New entries are zeros, as masked positions are multiplied with weight 0, and 0 * nan is nan.
            new_SHCD = old_SHCD.new_zeros(slot_count, old_SHCD.shape[1], token_capacity, old_SHCD.shape[3])
            new_SHCD[: old_SHCD.shape[0], :, : old_SHCD.shape[2]] = old_SHCD
            grown.append(new_SHCD)
        self.kv = tuple(grown)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [N, H, Q, D] to the cache; return the window's keys and values [N, H, L, D]."""
        window, heads = self.window, key_states.shape[1]
        # Layers with equally many heads share these indices, which are computed once per step.
        if heads not in window.targets:
            starts_M = torch.arange(window.rows * heads, device=window.positions_NQ.device) * window.capacity
            window.targets[heads] = (starts_M.view(window.rows, heads, 1) + window.positions_NQ[:, None]).flatten()
        targets_M = window.targets[heads]
        for cache_SHCD, new_NHQD in zip(self.kv, (key_states, value_states), strict=True):
            width = new_NHQD.shape[3]
            cache_SHCD.view(-1, width).index_copy_(0, targets_M, new_NHQD.reshape(-1, width).to(cache_SHCD.dtype))
        keys_SHCD, values_SHCD = self.kv
        return keys_SHCD[: window.rows, :, : window.length], values_SHCD[: window.rows, :, : window.length]

    def get_seq_length(self) -> int:
        return self.window.length


class SlotCache(Cache):
    """Key-value cache with one slot of equal capacity for each row. Slots and capacity double on demand."""

    def __init__(self, layers: int, dtype: torch.dtype, capacity: int = 0) -> None:
        """Create an empty cache.

        Args:
            layers: number of layers.
            dtype: dtype in which attention reads keys and values.
            capacity: initial number of tokens of each slot (default: `INITIAL_SLOT_CAPACITY`).
        """
        self.window = CacheSection()
        self.slots, self.capacity = 0, capacity
        self.slot_layers = [SlotCacheLayer(self.window, dtype) for _ in range(layers)]
        super().__init__(layers=list(self.slot_layers))

    def store_prefilled(
        self, prefilled: Sequence[tuple[Tensor, Tensor]], prefilled_rows: list[int], target_slots: list[int]
    ) -> None:
        """Copy `prefilled_rows` of keys and values (each layer's [P, H, L, D]) to `target_slots`, from position 0."""
        length = prefilled[0][0].shape[2]
        device = prefilled[0][0].device
        rows_N, slots_N = torch.tensor(prefilled_rows, device=device), torch.tensor(target_slots, device=device)
        if not self.slot_layers[0].is_initialized:
            for layer, pair in zip(self.slot_layers, prefilled, strict=True):
                layer.lazy_initialization(*pair)
        self.ensure_capacity(max(target_slots) + 1, length)
        for layer, pair in zip(self.slot_layers, prefilled, strict=True):
            for cache_SHCD, new_PHLD in zip(layer.kv, pair, strict=True):
                cache_SHCD[slots_N, :, :length] = new_PHLD[rows_N].to(cache_SHCD.dtype)

    def copy_slots(self, source_slots: Sequence[int], target_slots: Sequence[int], token_count: int) -> None:
        """Copy the keys and values at the first `token_count` positions of `source_slots` to `target_slots`."""
        device = self.slot_layers[0].kv[0].device
        sources_N, targets_N = torch.tensor(source_slots, device=device), torch.tensor(target_slots, device=device)
        self.ensure_capacity(max(target_slots) + 1, token_count)
        for layer in self.slot_layers:
            for cache_SHCD in layer.kv:
                cache_SHCD[targets_N, :, :token_count] = cache_SHCD[sources_N, :, :token_count]

    def set_write_positions_and_read_length(self, positions_NQ: Tensor, read_length: int) -> None:
        """Set the next forward to write row n's tokens at `positions_NQ[n]` and to read `read_length` positions."""
        self.ensure_capacity(positions_NQ.shape[0], read_length)
        window = self.window
        window.rows, window.length, window.capacity = positions_NQ.shape[0], read_length, self.capacity
        window.positions_NQ = positions_NQ
        window.targets.clear()

    def ensure_capacity(self, slot_count: int, token_count: int) -> None:
        """Grow the cache, if necessary, to at least `slot_count` rows of `token_count` tokens."""
        if slot_count <= self.slots and token_count <= self.capacity:
            return
        if slot_count > self.slots:
            self.slots = max(slot_count, 2 * self.slots)
        self.capacity = self.capacity or INITIAL_SLOT_CAPACITY
        if token_count > self.capacity:
            self.capacity = max(token_count, 2 * self.capacity)
        for layer in self.slot_layers:
            layer.resize(self.slots, self.capacity)


@dataclass(slots=True)
class SamplingJob(OpenTokenRequest):
    """A sampling request between its submission and its completion."""

    # `prompt` contains the prefix, too, so that requests with the same prompt and prefix share keys and values.
    logits_V: Tensor | None = None
    """Logits of the completion's first sampled token, reused by later requests with the same prompt and prefix."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.prompt.ids[: len(self.prompt.ids) - len(self.request.prefix)]


class DecodeBatch:
    """Jobs that are decoded together, with their state in numpy arrays. Rows [0, len(jobs)) are active."""

    def __init__(self, slots: int) -> None:
        self.size = slots
        self.jobs: list[SamplingJob] = []
        self.lengths_S = np.zeros(slots, np.int64)
        """Number of each row's tokens in the cache, which is the position of its next token."""
        self.counts_S = np.zeros(slots, np.int64)
        """Number of each row's completion tokens so far."""
        self.limits_S = np.zeros(slots, np.int64)
        """Maximum number of each row's completion tokens."""
        self.policies_S = np.zeros(slots, np.int64)
        """Index of each row's policy."""
        self.counters_S = np.zeros(slots, np.uint64)
        """Initial counter of each row's random stream."""
        self.tokens_ST = np.zeros((slots, 64), np.int64)
        self.logprobs_ST = np.zeros((slots, 64), np.float32)

    def add_rows(self, jobs: Sequence[SamplingJob]) -> None:
        """Append a row for each of `jobs`, whose prompts are in the cache."""
        seeds: list[int] = []
        self._widen_tables(max([len(job.request.prefix) for job in jobs], default=0))
        for row, job in enumerate(jobs, len(self.jobs)):
            prefix = job.request.prefix
            self.lengths_S[row] = len(job.prompt.ids)
            self.counts_S[row] = len(prefix)
            self.tokens_ST[row, : len(prefix)] = prefix
            self.logprobs_ST[row, : len(prefix)] = 0.0
            self.limits_S[row] = job.max_tokens
            self.policies_S[row] = job.prompt.policy
            seeds.append(job.request.seed)
        self.counters_S[len(self.jobs) : len(self.jobs) + len(jobs)] = random_counters_from_seeds(seeds)
        self.jobs.extend(jobs)

    def _widen_tables(self, token_count: int) -> None:
        """Double the width of the tables of tokens until a row can hold more than `token_count` tokens."""
        while token_count >= self.tokens_ST.shape[1]:
            self.tokens_ST = np.concatenate([self.tokens_ST, np.zeros_like(self.tokens_ST)], 1)
            self.logprobs_ST = np.concatenate([self.logprobs_ST, np.zeros_like(self.logprobs_ST)], 1)

    def sampled_ids(self, row: int) -> list[int]:
        """Return the ids of the completion's tokens so far in `row`, the request's prefix included."""
        return self.tokens_ST[row, : self.counts_S[row]].tolist()

    def last_tokens(self) -> NDArray[np.int64]:
        """Return the last token of every active row's completion [N]."""
        rows = len(self.jobs)
        return self.tokens_ST[np.arange(rows), self.counts_S[:rows] - 1]

    def imposed_tokens(self) -> NDArray[np.int64] | None:
        """Return each slot's token to impose instead of sampling one [S], -1 without; None if no row has such."""
        imposed_S: NDArray[np.int64] | None = None
        for row, job in enumerate(self.jobs):
            if job.thinking is not None and (token := job.thinking.token_to_impose) is not None:
                if imposed_S is None:
                    imposed_S = np.full(self.size, -1, np.int64)
                imposed_S[row] = token
        return imposed_S

    def append_tokens(self, tokens_N: NDArray[np.int64], logprobs_N: NDArray[np.float32]) -> None:
        """Append one sampled token and its log-probability to every active row."""
        counts_N = self.counts_S[: len(self.jobs)]
        self._widen_tables(int(counts_N.max()))
        rows = np.arange(len(counts_N))
        self.tokens_ST[rows, counts_N] = tokens_N
        self.logprobs_ST[rows, counts_N] = logprobs_N
        counts_N += 1

    def remove_rows(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Free `rows` and move the last active rows into the gaps. Return the moved rows' old and new indices."""
        remaining = len(self.jobs) - len(rows)
        holes = [row for row in rows if row < remaining]
        tails = sorted(set(range(remaining, len(self.jobs))).difference(rows))
        for hole, tail in zip(holes, tails, strict=True):
            self.jobs[hole] = self.jobs[tail]
        del self.jobs[remaining:]
        if holes:
            for array in (self.lengths_S, self.counts_S, self.limits_S, self.policies_S, self.counters_S):
                array[holes] = array[tails]
            # The tables are as wide as the longest completion, so only the columns with sampled tokens are copied.
            longest = int(self.counts_S[holes].max())
            for table in (self.tokens_ST, self.logprobs_ST):
                table[holes, :longest] = table[tails, :longest]
        return tails, holes
