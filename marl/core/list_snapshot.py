"""Beginnings of lists that grow, without copies of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar, overload

from marl.core.fast_records import fast_record

_Item = TypeVar("_Item")


@fast_record
@dataclass(frozen=True, slots=True, eq=False)
class ListSnapshot(Sequence[_Item], Generic[_Item]):
    """The first `length` items of `items`, a list to which others may append, but whose items they never change.

    The snapshots of a dialogue after each of its turns share one list. Copies would cost time and memory in proportion
    to the square of the dialogue's length.
    """

    items: list[_Item]
    length: int

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[_Item]:
        return islice(self.items, self.length)

    @overload
    def __getitem__(self, index: int) -> _Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[_Item, ...]: ...
    def __getitem__(self, index: int | slice) -> _Item | tuple[_Item, ...]:
        if isinstance(index, slice):
            return tuple(self.items[slice(*index.indices(self.length))])
        return self.items[range(self.length)[index]]


def begins_with(sequence: Sequence[_Item], beginning: Sequence[_Item]) -> bool:
    """Return True if `beginning` is the beginning of `sequence`. Two snapshots of one list are not compared by item."""
    if isinstance(sequence, ListSnapshot) and isinstance(beginning, ListSnapshot) and sequence.items is beginning.items:
        return len(beginning) <= len(sequence)
    return tuple(sequence[: len(beginning)]) == tuple(beginning)
