"""A key-value cache of slots: each row writes at its own position, and rows can be copied and moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

_FIRST_CAPACITY = 64


class Span:
    """What one forward touches, shared by all layers: rows [0, rows), positions [0, length)."""

    def __init__(self) -> None:
        self.rows = self.length = self.capacity = 0
        self.positions_NQ = torch.empty(0, 0, dtype=torch.long)
        self._where: dict[int, Tensor] = {}

    def aim(self, positions_NQ: Tensor, length: int, capacity: int) -> None:
        self.rows, self.length, self.capacity = positions_NQ.shape[0], length, capacity
        self.positions_NQ = positions_NQ
        self._where.clear()

    def where(self, heads: int) -> Tensor:
        """Flat index ((row * heads + head) * capacity + position) of each new vector, in the order of [N, H, Q]."""
        if heads not in self._where:
            starts_M = torch.arange(
                0, self.rows * heads * self.capacity, self.capacity, device=self.positions_NQ.device
            )
            where_NHQ = starts_M.view(self.rows, heads, 1) + self.positions_NQ[:, None]
            self._where[heads] = where_NHQ.flatten()
        return self._where[heads]


class SlotLayer(DynamicLayer):
    """One layer: keys and values [slots, heads, capacity, dim]. A head's past lies together, for attention."""

    def __init__(self, span: Span) -> None:
        super().__init__()
        self.span = span
        self.keys_SHCD = self.values_SHCD = torch.empty(0, 0, 0, 0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Learn the shapes from keys and values [N, H, L, D]; no room yet."""
        self.is_initialized = True
        self.keys_SHCD = key_states.new_zeros(0, key_states.shape[1], 0, key_states.shape[3])
        self.values_SHCD = value_states.new_zeros(0, value_states.shape[1], 0, value_states.shape[3])

    def resize(self, slots: int, capacity: int) -> None:
        """Make room, keeping what is there."""
        self.keys_SHCD = _grown(self.keys_SHCD, slots, capacity)
        self.values_SHCD = _grown(self.values_SHCD, slots, capacity)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [N, H, Q, D]; return all of the span, [N, H, length, D]."""
        return self._put(self.keys_SHCD, key_states), self._put(self.values_SHCD, value_states)

    def _put(self, held_SHCD: Tensor, new_NHQD: Tensor) -> Tensor:
        heads, width = new_NHQD.shape[1], new_NHQD.shape[3]
        held_SHCD.view(-1, width).index_copy_(0, self.span.where(heads), new_NHQD.reshape(-1, width))
        return held_SHCD[: self.span.rows, :, : self.span.length]

    def get_seq_length(self) -> int:
        return self.span.length


def _grown(held_SHCD: Tensor, slots: int, capacity: int) -> Tensor:
    # Zeros: what is masked still meets a weight of 0, and 0 * nan is nan.
    grown_SHCD = held_SHCD.new_zeros(slots, held_SHCD.shape[1], capacity, held_SHCD.shape[3])
    grown_SHCD[: held_SHCD.shape[0], :, : held_SHCD.shape[2]] = held_SHCD
    return grown_SHCD


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
            for held_SHCD, new_PHLD in zip((layer.keys_SHCD, layer.values_SHCD), pair, strict=True):
                held_SHCD[slots_N, :, :length] = new_PHLD[rows_N]

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions from slot to slot."""
        device = self.held[0].keys_SHCD.device
        sources_N, targets_N = torch.tensor(sources, device=device), torch.tensor(targets, device=device)
        self._fit(max(targets) + 1, length)
        for layer in self.held:
            for held_SHCD in (layer.keys_SHCD, layer.values_SHCD):
                held_SHCD[targets_N, :, :length] = held_SHCD[sources_N, :, :length]

    def aim(self, positions_NQ: Tensor, length: int) -> None:
        """The next forward writes row n's tokens at `positions_NQ[n]` and sees positions below `length`."""
        self._fit(positions_NQ.shape[0], length)
        self.span.aim(positions_NQ, length, self.capacity)

    def _fit(self, slots: int, length: int) -> None:
        if slots <= self.slots and length <= self.capacity:
            return
        self.slots = _doubled(self.slots, slots)
        self.capacity = _doubled(self.capacity or _FIRST_CAPACITY, length)
        for layer in self.held:
            layer.resize(self.slots, self.capacity)


def _doubled(have: int, need: int) -> int:
    """`have` if it is enough, else twice as much or what is needed."""
    return have if need <= have else max(need, 2 * have)
