"""Nim with one pile: players take turns to remove objects, and the player to take the last object wins."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from marl.engines.scripted import ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame, equiprobable_starts
from marl.games.two_player import AGENTS, OPPONENT_OF, PerfectInformationConfig, uniform_over_best_moves
from marl.protocols import EngineConfig, EvaluationPosition, GameStart

MAX_PILE = 10_000


def winning_moves_on_pile(pile: int, max_take: int) -> tuple[str, ...]:
    """Return the winning moves on `pile` if a move takes at most `max_take` objects; () in a lost position.

    A multiple of `max_take + 1` is lost: the opponent answers every move by completing `max_take + 1` objects.
    """
    remainder = pile % (max_take + 1)
    return (str(remainder),) if remainder else ()


class OptimalNimPlayer(ScriptedConfig):
    """Perfect player of Nim: plays the winning move, or a uniformly random move in a lost position."""

    kind: str = "perfect_nim"

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        # The state is the pile alone, so the number of legal moves stands for the maximum per move.
        return uniform_over_best_moves(winning_moves_on_pile(int(state), len(moves)) or moves, moves)


class NimConfig(PerfectInformationConfig):
    """Nim. A win is worth 1, a loss -1 and, by default, an illegal move -1.5."""

    kind: str = "nim"
    piles: tuple[int, int] = (6, 12)
    """Smallest and largest number of objects at the start; all numbers in this range are equally likely."""
    max_take: int = Field(default=3, ge=1, le=1000)
    """Maximum number of objects taken by one move."""

    @field_validator("piles")
    @classmethod
    def _check_range(cls, piles: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= piles[0] <= piles[1] <= MAX_PILE:
            bounds = f"[low, high] with 1 <= low <= high <= {MAX_PILE}"
            raise ValueError(f"piles: {list(piles)} is no range; choices: {bounds}")
        return piles

    def build(self) -> Nim:
        return Nim(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"minimax": OptimalNimPlayer()}

    def all_start_states(self) -> tuple[GameStart, ...]:
        return equiprobable_starts("pile", range(self.piles[0], self.piles[1] + 1))

    def optimal_moves(self, state: str) -> tuple[str, ...]:
        return winning_moves_on_pile(int(state), self.max_take)

    def evaluation_positions(self) -> tuple[EvaluationPosition, ...]:
        """Return, for each pile, the reset options that start with it, with () as further moves."""
        return tuple(({"pile": pile}, ()) for pile in range(1, self.piles[1] + 1))


class Nim(TextGame):
    """Nim for two; `player_0` moves first. The winner gets 1, the loser -1."""

    name = "nim"
    zero_sum = True
    # An illegal move costs more than a loss, so that a lost position is no reason to break the rules.
    default_penalty = 1.5
    reset_options = ("pile",)

    def __init__(self, config: NimConfig) -> None:
        self.takes = tuple(map(str, range(1, config.max_take + 1)))
        self.menu = tuple(f"[{take}]" for take in self.takes)
        self.piles = config.piles
        self.rules = (
            "This is Nim for two. There is one pile of objects. The players take turns, and in each turn take at "
            f"least one object and at most {config.max_take}. Who takes the last object wins. You are told how many "
            "objects are left, and how many you may take."
        )
        super().__init__(AGENTS, config.illegal, self.takes)

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        pile = options["pile"] if "pile" in options else rng.randint(*self.piles)
        if type(pile) is not int or not 1 <= pile <= self.piles[1]:
            raise ValueError(f"nim: option pile: {pile!r} is no pile; choices: 1 to {self.piles[1]}")
        self.pile = self.start = pile
        return AGENTS[0]

    def start_state_key(self) -> str:
        return str(self.start)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.takes[: self.pile]

    def describe_observation(self, agent: str) -> str:
        return " ".join((f"pile {self.pile} . take", *self.menu[: self.pile]))

    def information_state(self, agent: str) -> str:
        return str(self.pile)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        mover = self.agent_selection
        opponent = OPPONENT_OF[mover]
        self.pile -= int(action)
        return opponent if self.pile else {mover: 1.0, opponent: -1.0}
