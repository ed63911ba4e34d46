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

from marl.engines.token_engine import TokenRequest
from marl.engines.transformers.memory import FIRST_CAPACITY
from marl.engines.transformers.sampling import stream_keys, uniforms


class CacheWindow:
    """Section of the cache used by one forward, in all layers: rows [0, rows), positions [0, length)."""

    def __init__(self) -> None:
        self.rows = self.length = self.capacity = 0
        self.positions_NQ = torch.empty(0, 0, dtype=torch.long)
        self._targets: dict[int, Tensor] = {}

    def aim(self, positions_NQ: Tensor, length: int, capacity: int) -> None:
        """Set the window of the next forward, which writes row n's tokens at `positions_NQ[n]`."""
        self.rows, self.length, self.capacity = positions_NQ.shape[0], length, capacity
        self.positions_NQ = positions_NQ
        self._targets.clear()

    def targets(self, heads: int) -> Tensor:
        """Return the flat index (row * heads + head) * capacity + position of each new vector, ordered as [N, H, Q]."""
        # Computed once for all layers with equally many heads.
        if heads not in self._targets:
            starts_M = torch.arange(self.rows * heads, device=self.positions_NQ.device) * self.capacity
            self._targets[heads] = (starts_M.view(self.rows, heads, 1) + self.positions_NQ[:, None]).flatten()
        return self._targets[heads]


class SlotLayer(DynamicLayer):
    """Cache of one layer: keys and values `kv`, each [S, H, C, D]. The past of a head is contiguous for attention."""

    def __init__(self, window: CacheWindow, dtype: torch.dtype) -> None:
        super().__init__()
        self.window, self.dtype = window, dtype
        self.kv: tuple[Tensor, ...] = ()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take heads and widths from keys and values [N, H, L, D]; allocate no slots yet."""
        self.is_initialized = True
        # Values may be wider than keys.
        shapes = [(0, states.shape[1], 0, states.shape[3]) for states in (key_states, value_states)]
        self.kv = tuple(key_states.new_zeros(shape, dtype=self.dtype) for shape in shapes)

    def resize(self, slots: int, capacity: int) -> None:
        """Grow to `slots` rows of `capacity` tokens and keep the contents."""
        grown = []
        for old_SHCD in self.kv:
            # Zeros: masked positions still meet a weight of 0, and 0 * nan is nan.
            new_SHCD = old_SHCD.new_zeros(slots, old_SHCD.shape[1], capacity, old_SHCD.shape[3])
            new_SHCD[: old_SHCD.shape[0], :, : old_SHCD.shape[2]] = old_SHCD
            grown.append(new_SHCD)
        self.kv = tuple(grown)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [N, H, Q, D]; return those in the window, [N, H, L, D]."""
        targets_M = self.window.targets(key_states.shape[1])
        for cache_SHCD, new_NHQD in zip(self.kv, (key_states, value_states), strict=True):
            width = new_NHQD.shape[3]
            cache_SHCD.view(-1, width).index_copy_(0, targets_M, new_NHQD.reshape(-1, width).to(cache_SHCD.dtype))
        keys_SHCD, values_SHCD = self.kv
        rows, length = self.window.rows, self.window.length
        return keys_SHCD[:rows, :, :length], values_SHCD[:rows, :, :length]

    def get_seq_length(self) -> int:
        return self.window.length


class SlotCache(Cache):
    """Key-value cache of slots with equal capacity. Slots and capacity double on demand, so that memory follows use."""

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        """`dtype`: dtype in which attention reads keys and values; a model may compute them in a wider dtype."""
        self.window = CacheWindow()
        self.slots = self.capacity = 0
        self.slot_layers = [SlotLayer(self.window, dtype) for _ in range(layers)]
        super().__init__(layers=list(self.slot_layers))

    def store(self, prefilled: Sequence[tuple[Tensor, Tensor]], rows: list[int], slots: list[int]) -> None:
        """Copy rows of prefilled keys and values (per layer, [P, H, L, D]) to `slots`, from position 0."""
        length = prefilled[0][0].shape[2]
        device = prefilled[0][0].device
        rows_N, slots_N = torch.tensor(rows, device=device), torch.tensor(slots, device=device)
        if not self.slot_layers[0].is_initialized:
            for layer, pair in zip(self.slot_layers, prefilled, strict=True):
                layer.lazy_initialization(*pair)
        self._fit(max(slots) + 1, length)
        for layer, pair in zip(self.slot_layers, prefilled, strict=True):
            for cache_SHCD, new_PHLD in zip(layer.kv, pair, strict=True):
                cache_SHCD[slots_N, :, :length] = new_PHLD[rows_N].to(cache_SHCD.dtype)

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of slots `sources` to slots `targets`."""
        device = self.slot_layers[0].kv[0].device
        sources_N, targets_N = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        self._fit(max(targets) + 1, length)
        for layer in self.slot_layers:
            for cache_SHCD in layer.kv:
                cache_SHCD[targets_N, :, :length] = cache_SHCD[sources_N, :, :length]

    def aim(self, positions_NQ: Tensor, length: int) -> None:
        """Set the next forward to write row n's tokens at `positions_NQ[n]` and to read positions below `length`."""
        self._fit(positions_NQ.shape[0], length)
        self.window.aim(positions_NQ, length, self.capacity)

    def _fit(self, slots: int, length: int) -> None:
        """Grow the cache if it is too small for `slots` rows of `length` tokens."""
        if slots <= self.slots and length <= self.capacity:
            return
        if slots > self.slots:
            self.slots = max(slots, 2 * self.slots)
        self.capacity = self.capacity or FIRST_CAPACITY
        if length > self.capacity:
            self.capacity = max(length, 2 * self.capacity)
        for layer in self.slot_layers:
            layer.resize(self.slots, self.capacity)


@dataclass(slots=True)
class SamplingJob(TokenRequest):
    """A request from the queue to its completion. `version` is the version of the weights that read the prompt."""

    logits_V: Tensor | None = None
    """Logits of the first token, reused by later requests with the same prompt."""


class DecodeBatch:
    """Jobs under decoding, in plain arrays on the host. Rows [0, len(jobs)) are active."""

    def __init__(self, slots: int) -> None:
        self.size = slots
        self.jobs: list[SamplingJob] = []
        self.lengths_S = np.zeros(slots, np.int64)
        """Number of tokens in the cache: the position of the next token."""
        self.counts_S = np.zeros(slots, np.int64)
        """Number of sampled tokens."""
        self.limits_S = np.zeros(slots, np.int64)
        self.policies_S = np.zeros(slots, np.int64)
        """Index of each row's policy."""
        self.keys_S = np.zeros(slots, np.uint64)
        """Initial counter of each row's random stream."""
        self.tokens_ST = np.zeros((slots, 64), np.int64)
        self.logprobs_ST = np.zeros((slots, 64), np.float32)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.size - len(self.jobs)

    def admit(self, jobs: Sequence[SamplingJob]) -> None:
        """Append rows for jobs with a prompt in the cache."""
        rows = slice(len(self.jobs), len(self.jobs) + len(jobs))
        self.jobs.extend(jobs)
        self.lengths_S[rows] = [len(job.prompt.ids) for job in jobs]
        self.counts_S[rows] = 0
        self.limits_S[rows] = [job.max_tokens for job in jobs]
        self.policies_S[rows] = [job.prompt.policy for job in jobs]
        self.keys_S[rows] = stream_keys([job.request.seed for job in jobs])

    def last(self, rows: int) -> NDArray[np.int64]:
        """Return the last token of each of the first `rows` rows, [N]."""
        return self.tokens_ST[np.arange(rows), self.counts_S[:rows] - 1]

    def uniforms(self) -> NDArray[np.float32]:
        """Return the random number for each row's next token, [N]."""
        rows = len(self.jobs)
        return uniforms(self.keys_S[:rows], self.counts_S[:rows])

    def ids(self, row: int) -> list[int]:
        """Return the tokens sampled so far in a row."""
        return self.tokens_ST[row, : self.counts_S[row]].tolist()

    def record(self, tokens_N: NDArray[np.int64], logprobs_N: NDArray[np.float32]) -> None:
        """Append one token to every row."""
        counts_N = self.counts_S[: len(self.jobs)]
        if counts_N.max() >= self.tokens_ST.shape[1]:
            self.tokens_ST = np.concatenate([self.tokens_ST, np.zeros_like(self.tokens_ST)], 1)
            self.logprobs_ST = np.concatenate([self.logprobs_ST, np.zeros_like(self.logprobs_ST)], 1)
        rows = np.arange(len(counts_N))
        self.tokens_ST[rows, counts_N] = tokens_N
        self.logprobs_ST[rows, counts_N] = logprobs_N
        counts_N += 1

    def remove(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Free rows and move the last rows into the gaps. Return the moved rows' old and new indices."""
        remaining, freed = len(self.jobs) - len(rows), set(rows)
        holes = [row for row in rows if row < remaining]
        tails = [row for row in range(remaining, len(self.jobs)) if row not in freed]
        for hole, tail in zip(holes, tails, strict=True):
            self.jobs[hole] = self.jobs[tail]
        del self.jobs[remaining:]
        if holes:
            for array in (self.lengths_S, self.counts_S, self.limits_S, self.policies_S, self.keys_S):
                array[holes] = array[tails]
            # Only sampled tokens are copied: the tables are as wide as the longest completion so far.
            longest = int(self.counts_S[holes].max())
            for table in (self.tokens_ST, self.logprobs_ST):
                table[holes, :longest] = table[tails, :longest]
        return tails, holes
