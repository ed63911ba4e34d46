"""Space of a game's moves, as texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space


class MoveSpace(Space[str]):
    """Gymnasium action space whose actions are the texts in `moves`."""

    def __init__(self, moves: tuple[str, ...]) -> None:
        super().__init__(None, None)
        self.moves = moves

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        moves = self.moves if mask is None else [self.moves[index] for index in np.flatnonzero(mask)]
        return moves[int(self.np_random.integers(len(moves)))]

    def contains(self, x: Any) -> bool:
        return x in self.moves

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MoveSpace) and self.moves == other.moves
