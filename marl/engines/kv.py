"""A key-value cache of slots: each row writes at its own position, and rows can be copied and moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_FIRST_LENGTH = 64


@dataclass(slots=True)
class Span:
    """What one forward touches, shared by all layers: rows [0, rows), positions [0, length)."""

    rows: int = 0
    length: int = 0
    where_M: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Flat index (row * capacity + position) of each new token, row by row."""


class SlotLayer(DynamicLayer):
    """One layer: keys and values [slots, capacity, heads * dim]. A token's heads lie together: a write is one copy."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span
        self.heads = 0
        self.keys_SLE = self.values_SLE = torch.empty(0, 0, 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Learn the shapes from keys and values [N, H, L, D]; no room yet."""
        self.heads, self.is_initialized = key_states.shape[1], True
        self.keys_SLE = key_states.new_zeros(0, 0, key_states.shape[1] * key_states.shape[3])
        self.values_SLE = value_states.new_zeros(0, 0, value_states.shape[1] * value_states.shape[3])

    def resize(self, slots: int, capacity: int) -> None:
        """Make room, keeping what is there."""
        self.keys_SLE = _grown(self.keys_SLE, slots, capacity)
        self.values_SLE = _grown(self.values_SLE, slots, capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [N, H, Q, D]; return all of the span, [N, H, length, D]."""
        return self._put(self.keys_SLE, key_states), self._put(self.values_SLE, value_states)

    def _put(self, held_SLE: Tensor, new_NHQD: Tensor) -> Tensor:
        span, width = self.span, held_SLE.shape[-1]
        held_SLE.view(-1, width).index_copy_(0, span.where_M, new_NHQD.transpose(1, 2).reshape(-1, width))
        view_NLE = held_SLE[: span.rows, : span.length]
        return view_NLE.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def get_seq_length(self) -> int:
        return self.span.length


def _grown(held_SLE: Tensor, slots: int, capacity: int) -> Tensor:
    # Zeros: what is masked still meets a weight of 0, and 0 * nan is nan.
    grown_SLE = held_SLE.new_zeros(slots, capacity, held_SLE.shape[-1])
    grown_SLE[: held_SLE.shape[0], : held_SLE.shape[1]] = held_SLE
    return grown_SLE


class SlotCache(Cache):
    """Slots of equal capacity. Rows and capacity grow by doubling, so that memory follows use."""

    def __init__(self, layers: int) -> None:
        self.span = Span()
        self.slots = self.capacity = 0
        self.held = [SlotLayer(self.span) for _ in range(layers)]
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
            for held_SLE, new_PHLD in zip((layer.keys_SLE, layer.values_SLE), pair, strict=True):
                held_SLE[slots_N, :length] = new_PHLD.transpose(1, 2).flatten(2)[rows_N]

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions from slot to slot."""
        device = self.held[0].keys_SLE.device
        sources_N, targets_N = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        self._fit(max(targets) + 1, length)
        for layer in self.held:
            for held_SLE in (layer.keys_SLE, layer.values_SLE):
                held_SLE[targets_N, :length] = held_SLE[sources_N, :length]

    def aim(self, positions_NQ: Tensor, length: int) -> None:
        """The next forward writes row n's tokens at `positions_NQ[n]` and sees positions below `length`."""
        rows = positions_NQ.shape[0]
        self._fit(rows, length)
        starts_N1 = torch.arange(0, rows * self.capacity, self.capacity, device=positions_NQ.device)[:, None]
        self.span.rows, self.span.length = rows, length
        self.span.where_M = (starts_N1 + positions_NQ).flatten()

    def _fit(self, slots: int, length: int) -> None:
        if slots <= self.slots and length <= self.capacity:
            return
        self.slots = _doubled(self.slots, slots)
        self.capacity = _doubled(self.capacity or _FIRST_LENGTH, length)
        for layer in self.held:
            layer.resize(self.slots, self.capacity)


def _doubled(have: int, need: int) -> int:
    """`have` if it is enough, else twice as much or what is needed."""
    return have if need <= have else max(need, 2 * have)
