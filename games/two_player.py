"""Seats, opening positions and move distributions shared by the games for two players."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

AGENTS = ("player_0", "player_1")
MAX_ENUMERATED_HISTORIES = 200_000
"""Maximum number of histories of a game whose deals are exported for exact evaluation."""

Position = TypeVar("Position")


def opponent_of(agent: str) -> str:
    """Return the other agent of `AGENTS`."""
    return AGENTS[agent == AGENTS[0]]


def uniform_over(best: Collection[str], moves: Sequence[str]) -> Mapping[str, float]:
    """Return move -> probability: uniform over the moves in `best`, 0 for all other moves."""
    return {move: 1 / len(best) if move in best else 0.0 for move in moves}


def random_opening(
    rng: random.Random,
    start: Position,
    share: float,
    max_moves: int,
    successors: Callable[[Position], Sequence[Position]],
) -> Position:
    """Return `start`, or with probability `share` the position after 1 to `max_moves` random moves from `start`.

    `successors` returns the unfinished positions after one move, so that no random move ends the game.
    """
    # With a share of 0 no random number is drawn, so the setting leaves the draws of all other games as they are.
    if not share or rng.random() >= share:
        return start
    position = start
    for _ in range(rng.randint(1, max_moves)):
        candidates = successors(position)
        if not candidates:
            break
        position = rng.choice(candidates)
    return position
