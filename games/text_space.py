"""Space of free texts: any characters, within a range of lengths."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Text

MAX_OBSERVATION_LENGTH, MAX_MOVE_LENGTH = 65_536, 4096
"""Maximum lengths of an observation and of a free-text move in a game's spaces [characters]."""
SAMPLED_CHARACTERS = frozenset(map(chr, (10, *range(32, 127))))
"""Characters of sampled texts: printable ASCII and the line break."""


class TextSpace(Text):
    """Gymnasium space of the texts with at most `max_length` characters of any alphabet. Samples are ASCII texts."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=SAMPLED_CHARACTERS)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"

    @property
    def is_np_flattenable(self) -> bool:
        """False, since only characters of samples have a number."""
        return False
