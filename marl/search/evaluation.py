"""Search at test time: settings of the search, a budget for exact figures, and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from marl.search.settings import SearchSettings

_Item = TypeVar("_Item")
Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Function that yields the given items and shows how many are done, with a description."""
_CHUNK = 64
"""Number of decisions or episodes whose searches run side by side. Their trees are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class SearchEvaluation:
    """Search at test time."""

    settings: SearchSettings
    exact_simulations: int | None = None
    """Maximum number of simulations for exact figures of a game (default: no limit). If it is too small for all
    information states, NashConv is left out; optimal moves are then measured in fewer positions."""
    track: Track | None = None
    """Progress display (default: none)."""

    def decisions_within_budget(self, needed: int) -> int:
        """Return the number of decisions that may be searched for exact figures, at most `needed`."""
        if self.exact_simulations is None:
            return needed
        return min(needed, self.exact_simulations // self.settings.simulations)

    def chunks(self, items: Sequence[_Item], description: str) -> Iterator[Sequence[_Item]]:
        """Yield `items` in chunks that are searched side by side, and show the progress under `description`."""
        chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
        yield from self.track(chunks, description) if self.track else chunks
