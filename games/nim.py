"""Nim with one pile: players take a few objects in turn, and the player who takes the last one wins."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from games.base import TextGame, TextGameConfig
from marl.engines.scripted import ScriptedConfig
from marl.protocols import EngineConfig, GameStart

AGENTS = ("player_0", "player_1")


def winning(pile: int, limit: int) -> tuple[str, ...]:
    """Return the moves that win against any play when up to `limit` may be taken; () in a lost position.

    A pile that is a multiple of `limit + 1` is lost: the opponent always completes a move to `limit + 1`.
    """
    spare = pile % (limit + 1)
    return (str(spare),) if spare else ()


class PerfectPlayer(ScriptedConfig):
    """Perfect player of Nim: plays the winning move, or any move with equal probability where every move loses."""

    kind: str = "perfect_nim"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        # The longest legal move serves as the limit: below the game's own, it is the whole pile, which is to be taken.
        best = winning(int(state), len(moves)) or moves
        return {move: 1 / len(best) if move in best else 0.0 for move in moves}


MAX_PILE = 10_000


class NimConfig(TextGameConfig):
    """Nim. A win is worth 1, a loss -1, an illegal move -1.5 unless `illegal.penalty` says otherwise."""

    kind: str = "nim"
    piles: tuple[int, int] = (6, 12)
    """Smallest and largest start pile; all sizes between are equally likely."""
    max_take: int = Field(default=3, ge=1, le=1000)
    """Largest number of objects that one move takes."""

    @field_validator("piles")
    @classmethod
    def _ordered(cls, piles: tuple[int, int]) -> tuple[int, int]:
        if not 1 <= piles[0] <= piles[1] <= MAX_PILE:
            bounds = f"[low, high] with 1 <= low <= high <= {MAX_PILE}"
            raise ValueError(f"piles: {list(piles)} is no range; choices: {bounds}")
        return piles

    def perfect_information(self) -> bool:
        return True

    def build(self) -> Nim:
        return Nim(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"minimax": PerfectPlayer()}

    def starts(self) -> tuple[GameStart, ...]:
        low, high = self.piles
        return tuple(GameStart(1 / (high - low + 1), {"pile": pile}) for pile in range(low, high + 1))

    def optimal(self, state: str) -> tuple[str, ...]:
        return winning(int(state), self.max_take)

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        return tuple(({"pile": pile}, ()) for pile in range(1, self.piles[1] + 1))


class Nim(TextGame):
    """Players take turns; the first to move is `player_0`. Zero-sum: 1 to the winner, -1 to the loser."""

    name = "nim"
    zero_sum = True
    foul = 1.5  # more than a loss, so that a lost position is no reason to break the rules
    choices = ("pile",)

    def __init__(self, config: NimConfig) -> None:
        self.takes = tuple(str(n + 1) for n in range(config.max_take))
        self.menu = tuple(f"[{take}]" for take in self.takes)
        self.piles = config.piles
        self.rules = (
            "This is Nim for two. There is one pile of objects. The players take turns, and in each turn take at "
            f"least one object and at most {config.max_take}. Who takes the last object wins. You are told how many "
            "objects are left, and how many you may take."
        )
        super().__init__(AGENTS, config.illegal, self.takes)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        pile = options["pile"] if "pile" in options else rng.randint(*self.piles)
        if type(pile) is not int or not 1 <= pile <= self.piles[1]:
            raise ValueError(f"nim: option pile: {pile!r} is no pile; choices: 1 to {self.piles[1]}")
        self.pile = self.start = pile
        return AGENTS[0]

    def start_key(self) -> str:
        return str(self.start)

    def legal(self, agent: str) -> tuple[str, ...]:
        return self.takes[: self.pile]

    def describe(self, agent: str) -> str:
        return " ".join((f"pile {self.pile} . take", *self.menu[: self.pile]))

    def state_of(self, agent: str) -> str:
        return str(self.pile)

    def move(self, action: str) -> str | Mapping[str, float]:
        mover = self.agent_selection
        other = AGENTS[mover == AGENTS[0]]
        self.pile -= int(action)
        return other if self.pile else {mover: 1.0, other: -1.0}
