"""Seats, opening positions and move distributions shared by the games for two players."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from marl.games.base import TextGameConfig

AGENTS = ("player_0", "player_1")
OPPONENT_OF = {"player_0": "player_1", "player_1": "player_0"}
MAX_ENUMERATED_HISTORIES = 200_000
"""Maximum number of histories of a game whose start states are listed, so that evaluation can enumerate the game."""

Position = TypeVar("Position")


class PerfectInformationConfig(TextGameConfig):
    """Base of the settings of games in which both players observe the full state, and only the start is random."""

    def has_perfect_information(self) -> bool:
        return True


def uniform_over_best_moves(best_moves: Collection[str], moves: Sequence[str]) -> Mapping[str, float]:
    """Return the probability of each of `moves`: uniform over `best_moves`, 0 for all other moves."""
    return {move: 1 / len(best_moves) if move in best_moves else 0.0 for move in moves}


def position_after_random_opening(
    rng: random.Random,
    start_position: Position,
    opening_probability: float,
    max_opening_moves: int,
    unfinished_successors: Callable[[Position], Sequence[Position]],
) -> Position:
    """Return `start_position`, or with `opening_probability` the position after 1 to `max_opening_moves` random moves.

    `unfinished_successors` returns the unfinished positions after one more move, so that no random move ends the game.
    """
    # With a probability of 0 no random number is drawn, so the same seed gives the same game as without this setting.
    if not opening_probability or rng.random() >= opening_probability:
        return start_position
    position = start_position
    for _ in range(rng.randint(1, max_opening_moves)):
        candidates = unfinished_successors(position)
        if not candidates:
            break
        position = rng.choice(candidates)
    return position
