"""Slots of rows that are decoded together: their key-value cache, and their requests and tokens on the host.

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

from marl.engines.transformers.memory import FIRST_CAPACITY
from marl.engines.transformers.sampling import stream_keys, uniforms
from marl.engines.transformers.thoughts import ThoughtLimit
from marl.models.chat_template import Prompt
from marl.models.token_places import Range
from marl.types import Completion, Finish, Request, Ticket


class Span:
    """The part of the cache that one forward touches, in all layers: rows [0, rows), positions [0, length)."""

    def __init__(self) -> None:
        self.rows = self.length = self.capacity = 0
        self.positions_NQ = torch.empty(0, 0, dtype=torch.long)
        self._targets: dict[int, Tensor] = {}

    def aim(self, positions_NQ: Tensor, length: int, capacity: int) -> None:
        self.rows, self.length, self.capacity = positions_NQ.shape[0], length, capacity
        self.positions_NQ = positions_NQ
        self._targets.clear()

    def targets(self, heads: int) -> Tensor:
        """Return the flat index (row * heads + head) * capacity + position of each new vector, ordered as [N, H, Q]."""
        if heads not in self._targets:
            starts_M = torch.arange(self.rows * heads, device=self.positions_NQ.device) * self.capacity
            self._targets[heads] = (starts_M.view(self.rows, heads, 1) + self.positions_NQ[:, None]).flatten()
        return self._targets[heads]


class SlotLayer(DynamicLayer):
    """One layer: keys and values `kv`, each [S, H, C, D], in which a head's past is contiguous for attention."""

    def __init__(self, span: Span, dtype: torch.dtype) -> None:
        super().__init__()
        self.span, self.dtype = span, dtype
        self.kv: tuple[Tensor, ...] = ()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take the shapes from keys and values [N, H, L, D]; there is no room yet."""
        self.is_initialized = True
        self.kv = tuple(
            x_NHLD.new_zeros(0, x_NHLD.shape[1], 0, x_NHLD.shape[3], dtype=self.dtype)
            for x_NHLD in (key_states, value_states)
        )

    def resize(self, slots: int, capacity: int) -> None:
        """Make room and keep what is there."""
        self.kv = tuple(_grow(held_SHCD, slots, capacity) for held_SHCD in self.kv)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [N, H, Q, D]; return all of the span, [N, H, L, D]."""
        return self._put(self.kv[0], key_states), self._put(self.kv[1], value_states)

    def _put(self, held_SHCD: Tensor, new_NHQD: Tensor) -> Tensor:
        heads, width = new_NHQD.shape[1], new_NHQD.shape[3]
        new_MD = new_NHQD.reshape(-1, width).to(held_SHCD.dtype)
        held_SHCD.view(-1, width).index_copy_(0, self.span.targets(heads), new_MD)
        return held_SHCD[: self.span.rows, :, : self.span.length]

    def get_seq_length(self) -> int:
        return self.span.length


def _grow(held_SHCD: Tensor, slots: int, capacity: int) -> Tensor:
    # Zeros: what is masked still meets a weight of 0, and 0 * nan is nan.
    grown_SHCD = held_SHCD.new_zeros(slots, held_SHCD.shape[1], capacity, held_SHCD.shape[3])
    grown_SHCD[: held_SHCD.shape[0], :, : held_SHCD.shape[2]] = held_SHCD
    return grown_SHCD


class SlotCache(Cache):
    """Key-value cache of slots with equal capacity. Slots and capacity grow by doubling, so that memory follows use."""

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        """`dtype`: type in which attention reads keys and values, which a model may compute in a wider one."""
        self.span = Span()
        self.slots = self.capacity = 0
        self.held = [SlotLayer(self.span, dtype) for _ in range(layers)]
        super().__init__(layers=list(self.held))

    def store(self, prefilled: Sequence[tuple[Tensor, Tensor]], rows: list[int], slots: list[int]) -> None:
        """Copy rows of prefilled keys and values (per layer, [P, H, L, D]) to `slots`, from position 0."""
        length = prefilled[0][0].shape[2]
        device = prefilled[0][0].device
        rows_N, slots_N = torch.tensor(rows, device=device), torch.tensor(slots, device=device)
        if not self.held[0].is_initialized:
            for layer, pair in zip(self.held, prefilled, strict=True):
                layer.lazy_initialization(*pair)
        self._fit(max(slots) + 1, length)
        for layer, pair in zip(self.held, prefilled, strict=True):
            for held_SHCD, new_PHLD in zip(layer.kv, pair, strict=True):
                held_SHCD[slots_N, :, :length] = new_PHLD[rows_N].to(held_SHCD.dtype)

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions from slot to slot."""
        device = self.held[0].kv[0].device
        sources_N, targets_N = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        self._fit(max(targets) + 1, length)
        for layer in self.held:
            for held_SHCD in layer.kv:
                held_SHCD[targets_N, :, :length] = held_SHCD[sources_N, :, :length]

    def aim(self, positions_NQ: Tensor, length: int) -> None:
        """Let the next forward write row n's tokens at `positions_NQ[n]` and see positions below `length`."""
        self._fit(positions_NQ.shape[0], length)
        self.span.aim(positions_NQ, length, self.capacity)

    def _fit(self, slots: int, length: int) -> None:
        if slots <= self.slots and length <= self.capacity:
            return
        self.slots = _double(self.slots, slots)
        self.capacity = _double(self.capacity or FIRST_CAPACITY, length)
        for layer in self.held:
            layer.resize(self.slots, self.capacity)


def _double(size: int, needed: int) -> int:
    """Return `size` if it is enough, else twice as much or what is needed."""
    return size if needed <= size else max(needed, 2 * size)


@dataclass(slots=True)
class SamplingJob:
    """A request on its way to a completion."""

    ticket: Ticket
    request: Request
    prompt: Prompt
    limit: int
    """Most tokens of the completion."""
    thought: ThoughtLimit | None = None
    """Limit of its thoughts."""
    mark_tokens: tuple[Range, ...] = ()
    """Tokens of the request's marks in the prompt."""
    version: int = 0
    """Version of the weights that read the prompt."""
    logits_V: Tensor | None = None
    """Logits of the first token, so that a later request with the same prompt need not read it again."""

    def completion(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[float, ...],
        finish: Finish,
        versions: tuple[int, int],
    ) -> Completion:
        """Return the completion, with all that is known of it before it is sampled."""
        imposed = tuple(self.thought.imposed) if self.thought else ()
        prompt, marks = self.prompt.ids, self.mark_tokens
        return Completion(text, prompt, token_ids, logprobs, finish, versions, imposed=imposed, mark_tokens=marks)


class Slots:
    """Jobs that are decoded, in plain arrays on the host. Rows [0, len(jobs)) are active."""

    def __init__(self, slots: int) -> None:
        self.size = slots
        self.jobs: list[SamplingJob] = []
        self.lengths_S = np.zeros(slots, np.int64)
        """Tokens in the cache, which is the position at which the next one is written."""
        self.counts_S = np.zeros(slots, np.int64)
        """Tokens sampled."""
        self.limits_S = np.zeros(slots, np.int64)
        self.policies_S = np.zeros(slots, np.int64)
        """Index of the policy whose weights are used."""
        self.keys_S = np.zeros(slots, np.uint64)
        self.tokens_ST = np.zeros((slots, 64), np.int64)
        self.logprobs_ST = np.zeros((slots, 64), np.float32)

    @property
    def free(self) -> int:
        return self.size - len(self.jobs)

    def admit(self, jobs: Sequence[SamplingJob]) -> None:
        """Append rows whose prompts are in the cache."""
        rows = slice(len(self.jobs), len(self.jobs) + len(jobs))
        self.jobs.extend(jobs)
        self.lengths_S[rows] = [len(job.prompt.ids) for job in jobs]
        self.counts_S[rows] = 0
        self.limits_S[rows] = [job.limit for job in jobs]
        self.policies_S[rows] = [job.prompt.policy for job in jobs]
        self.keys_S[rows] = stream_keys([job.request.seed for job in jobs])

    def last(self, rows: int) -> NDArray[np.int64]:
        """Return the last token [N] of each of the first `rows` rows."""
        return self.tokens_ST[np.arange(rows), self.counts_S[:rows] - 1]

    def uniforms(self) -> NDArray[np.float32]:
        """Return the random number [N] that picks each row's next token."""
        rows = len(self.jobs)
        return uniforms(self.keys_S[:rows], self.counts_S[:rows])

    def ids(self, row: int) -> list[int]:
        """Return the tokens of a row's completion so far."""
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
        """Free rows; rows from the back take their places. Return (moved from, moved to)."""
        left, freed = len(self.jobs) - len(rows), set(rows)
        holes = [row for row in rows if row < left]
        tails = [row for row in range(left, len(self.jobs)) if row not in freed]
        for hole, tail in zip(holes, tails, strict=True):
            self.jobs[hole] = self.jobs[tail]
        del self.jobs[left:]
        if holes:
            for array in (self.lengths_S, self.counts_S, self.limits_S, self.policies_S, self.keys_S):
                array[holes] = array[tails]
            longest = int(self.counts_S[holes].max())
            for table in (self.tokens_ST, self.logprobs_ST):
                table[holes, :longest] = table[tails, :longest]
        return tails, holes
