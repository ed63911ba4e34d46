"""Matrix games with a payoff for each player, played once or several times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from string import ascii_lowercase
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from games.simultaneous import SimultaneousConfig, SimultaneousGame
from marl.config import nearest
from marl.engines.scripted import ScriptedConfig
from marl.protocols import EngineConfig

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+$")]


class StageGame(NamedTuple):
    """One round of a matrix game."""

    moves: tuple[tuple[str, ...], ...]
    """The moves of each player."""
    cells: Any
    """Nested lists, one level for each player's move; innermost the payoffs of `player_0`, `player_1`, ..."""


def _zero_sum(moves: tuple[str, ...], table: list[list[float]]) -> StageGame:
    """Return a game of two players with the same moves; `table` holds what the first one wins."""
    return StageGame((moves, moves), [[[win, -win] for win in row] for row in table])


_RPS = ("rock", "paper", "scissors")
STAGE_GAMES: dict[str, StageGame] = {
    "rock_paper_scissors": _zero_sum(_RPS, [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]),
    "biased_rock_paper_scissors": _zero_sum(_RPS, [[0, -25, 50], [25, 0, -5], [-50, 5, 0]]),
    "matching_pennies": _zero_sum(("heads", "tails"), [[1, -1], [-1, 1]]),
    "shapley": StageGame((_RPS, _RPS), [[[0, 0], [0, 1], [1, 0]], [[1, 0], [0, 0], [0, 1]], [[0, 1], [1, 0], [0, 0]]]),
    "prisoners_dilemma": StageGame((("cooperate", "defect"),) * 2, [[[5, 5], [0, 10]], [[10, 0], [1, 1]]]),
    "chicken": StageGame((("dare", "chicken"),) * 2, [[[0, 0], [4, 1]], [[1, 4], [3, 3]]]),
    "stag_hunt": StageGame((("stag", "hare"),) * 2, [[[2, 2], [0, 1]], [[1, 0], [1, 1]]]),
}
"""Payoffs as in OpenSpiel's matrix games. shapley: fictitious play goes in circles in it (Shapley, 1964)."""


class TitForTat(ScriptedConfig):
    """Does what the other player did in the round before; begins with its first move (Axelrod, 1980)."""

    kind: str = "tit_for_tat"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        _, *rounds = state.split()
        last = rounds[-1].split("_")[-1] if rounds else ""
        return {last if last in moves else moves[0]: 1.0}


class RepeatedMatrixConfig(SimultaneousConfig):
    """A matrix game, paid in each round. An illegal move ends it at the cost of its worst course, at least 1."""

    kind: str = "repeated_matrix"
    example = "table: rock_paper_scissors"
    table: str | list[Any]
    """Payoffs: rock_paper_scissors, biased_rock_paper_scissors, matching_pennies, shapley, prisoners_dilemma, chicken,
    stag_hunt; or nested lists of numbers: `table[i][j]` holds the payoffs of `player_0` and `player_1` for the i-th
    move of the one and the j-th of the other, and so on with a level for each player."""
    moves: tuple[tuple[Word, ...], ...] | None = None
    """Names of the moves of each player. None: those of the named table; else a, b, c ..."""
    rounds: int = Field(default=1, ge=1, le=1000)
    """Number of rounds. Players are told all moves of the rounds before."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str | list[Any]) -> str | list[Any]:
        if isinstance(table, str):
            if table not in STAGE_GAMES:
                raise ValueError(f"table: no preset {table!r}; {nearest(table, STAGE_GAMES)}")
            return table
        form = "choices: nested lists of numbers, one level for each player, innermost the payoff of each"
        try:
            cells = np.array(table, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"table: {table} is no table; {form}") from None
        if not cells.size or not np.isfinite(cells).all() or cells.shape[-1] != cells.ndim - 1:
            raise ValueError(f"table: {table} is no table for {max(cells.ndim - 1, 1)} players; {form}")
        if max(cells.shape) > len(ascii_lowercase):
            raise ValueError(f"table: {max(cells.shape)} moves; choices: at most {len(ascii_lowercase)}")
        return table

    @model_validator(mode="after")
    def _check_moves(self) -> Self:
        counts = list(self.cells.shape[:-1])
        if self.moves is not None and [len({move.lower() for move in menu}) for menu in self.moves] != counts:
            raise ValueError(f"moves: {self.moves}; choices: {counts} different names, as in the table")
        return self

    @property
    def cells(self) -> np.ndarray:
        """Payoffs, with one dimension for each player's move and a last one for who is paid."""
        return np.array(STAGE_GAMES[self.table].cells if isinstance(self.table, str) else self.table, dtype=np.float64)

    @property
    def menus(self) -> tuple[tuple[str, ...], ...]:
        """Moves of each player."""
        if self.moves is not None:
            return self.moves
        if isinstance(self.table, str):
            return STAGE_GAMES[self.table].moves
        return tuple(tuple(ascii_lowercase[:count]) for count in self.cells.shape[:-1])

    def build(self) -> RepeatedMatrix:
        return RepeatedMatrix(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"tit_for_tat": TitForTat()} if len(self.menus) == 2 else {}


class RepeatedMatrix(SimultaneousGame):
    """In each round all choose at once, and each is paid its own number of the cell of the joint move."""

    name = "repeated_matrix"
    seat = "player"
    common = False

    def __init__(self, config: RepeatedMatrixConfig) -> None:
        self.cells, self.rounds = config.cells, config.rounds
        self.zero_sum = bool(np.allclose(self.cells.sum(axis=-1), 0.0))
        super().__init__(config.illegal, config.menus, config.rounds * float(self.cells.min()))
        self.rules = self._rules()

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.past: list[tuple[str, ...]] = []
        """Joint moves of the rounds before."""
        return super().deal(rng, options)

    def payoff(self, joint: tuple[str, ...]) -> Mapping[str, float] | None:
        paid = dict(zip(self.seats, map(float, self._cell(joint)), strict=True))
        self.past.append(joint)
        if len(self.past) == self.rounds:
            return paid
        self.pay(paid, cause=f"round {len(self.past)}")
        return None

    def known(self, agent: str) -> str:
        """Return a word for each round before: its number, the agent's own move, and those of the others in order."""
        place = self.seats.index(agent)
        return " ".join(
            "_".join([str(number), joint[place], *joint[:place], *joint[place + 1 :]])
            for number, joint in enumerate(self.past, 1)
        )

    def _cell(self, joint: tuple[str, ...]) -> np.ndarray:
        """Return the payoffs of a joint move."""
        return self.cells[tuple(menu.index(move) for menu, move in zip(self.menus.values(), joint, strict=True))]

    def _rules(self) -> str:
        players = ", ".join(f"`{seat}`" for seat in self.seats)
        payoffs = "; ".join(
            f"{', '.join(joint)}: {', '.join(f'{number:g}' for number in self._cell(joint))}"
            for joint in product(*self.menus.values())
        )
        return (
            f"The players {players} play {self.rounds} round{'s' * (self.rounds > 1)}. In each, all choose a move at "
            "the same time, and none sees the choices of the others before. Then each is paid points of its own. "
            f"These are the moves, in the order of the players, and the points that each is paid: {payoffs}. You are "
            "told who you are, and of each round before its number, your own move, and those of the others in order."
        )
