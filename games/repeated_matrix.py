"""General-sum matrix games with one payoff per player, for one or several rounds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from string import ascii_lowercase
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from marl.core.config import choices_hint
from marl.engines.scripted import ScriptedConfig
from marl.games.matrix_games import SimultaneousConfig, SimultaneousGame, payoff_cells
from marl.protocols import EngineConfig

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+$")]


class StageGame(NamedTuple):
    """One round of a matrix game."""

    moves: tuple[tuple[str, ...], ...]
    """Moves of each player."""
    cells: Any
    """Payoffs as nested lists with one level per player's move; innermost, one payoff per player."""


def _zero_sum(moves: tuple[str, ...], table: list[list[float]]) -> StageGame:
    """Return a zero-sum game of two players with equal moves; `table` holds the first player's payoffs."""
    cells: list[list[list[float]]] = []
    for row in table:
        cells.append([[payoff, -payoff] for payoff in row])
    return StageGame((moves, moves), cells)


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
"""Name -> game, with the payoffs of OpenSpiel. In shapley, fictitious play never converges (Shapley, 1964)."""


class TitForTat(ScriptedConfig):
    """Tit for tat: repeats the opponent's last move, and starts with the first legal move (Axelrod, 1980)."""

    kind: str = "tit_for_tat"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        _, *rounds = state.split()
        last = rounds[-1].split("_")[-1] if rounds else ""
        return {last if last in moves else moves[0]: 1.0}


class RepeatedMatrixConfig(SimultaneousConfig):
    """Matrix game with a payoff in every round. An illegal move costs the worst possible return, at least 1."""

    kind: str = "repeated_matrix"
    example = "table: rock_paper_scissors"
    table: str | list[Any]
    """Payoffs: rock_paper_scissors, biased_rock_paper_scissors, matching_pennies, shapley, prisoners_dilemma, chicken,
    stag_hunt; or nested lists of numbers: `table[i][j]` holds the payoffs of `player_0` and `player_1` for the i-th
    move of the one and the j-th of the other, and so on with a level for each player."""
    moves: tuple[tuple[Word, ...], ...] | None = None
    """Names of each player's moves, or None for the names of the predefined table, else a, b, c ..."""
    rounds: int = Field(default=1, ge=1, le=1000)
    """Number of rounds. Every player sees all moves of earlier rounds."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str | list[Any]) -> str | list[Any]:
        if isinstance(table, str):
            if table not in STAGE_GAMES:
                raise ValueError(f"table: no preset {table!r}; {choices_hint(table, STAGE_GAMES)}")
            return table
        form = "choices: nested lists of numbers, one level for each player, innermost the payoff of each"
        payoff_cells(table, form, per_player=True)
        return table

    @model_validator(mode="after")
    def _check_moves(self) -> Self:
        counts = list(self.cells.shape[:-1])
        if self.moves is None:
            return self
        # Roles may read moves in any case, so names must differ in more than case.
        distinct_names = [{move.lower() for move in menu} for menu in self.moves]
        if list(map(len, distinct_names)) != counts:
            raise ValueError(f"moves: {self.moves}; choices: {counts} different names, as in the table")
        return self

    @property
    def cells(self) -> np.ndarray:
        """Payoffs, with one dimension per player's move and a last dimension for the paid player."""
        return np.array(STAGE_GAMES[self.table].cells if isinstance(self.table, str) else self.table, dtype=np.float64)

    @property
    def action_sets(self) -> tuple[tuple[str, ...], ...]:
        """Moves of each player."""
        if self.moves is not None:
            return self.moves
        if isinstance(self.table, str):
            return STAGE_GAMES[self.table].moves
        return tuple(tuple(ascii_lowercase[:count]) for count in self.cells.shape[:-1])

    def build(self) -> RepeatedMatrixGame:
        return RepeatedMatrixGame(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"tit_for_tat": TitForTat()} if len(self.action_sets) == 2 else {}


class RepeatedMatrixGame(SimultaneousGame):
    """In each round all players move at once, and each gets its own payoff of the joint move's cell."""

    name = "repeated_matrix"
    agent_prefix = "player"
    common_reward = False

    def __init__(self, config: RepeatedMatrixConfig) -> None:
        self.cells, self.rounds = config.cells, config.rounds
        self.zero_sum = bool(np.allclose(self.cells.sum(axis=-1), 0.0))
        super().__init__(config.illegal, config.action_sets, config.rounds * float(self.cells.min()))
        players = ", ".join(f"`{seat}`" for seat in self.seats)
        payoffs: list[str] = []
        for joint in product(*self.action_sets.values()):
            numbers = [f"{number:g}" for number in self._cell(joint)]
            payoffs.append(f"{', '.join(joint)}: {', '.join(numbers)}")
        self.rules = (
            f"The players {players} play {self.rounds} round{'s' * (self.rounds > 1)}. In each, all choose a move at "
            "the same time, and none sees the choices of the others before. Then each is paid points of its own. "
            "These are the moves, in the order of the players, and the points that each is paid: "
            f"{'; '.join(payoffs)}. You are "
            "told who you are, and of each round before its number, your own move, and those of the others in order."
        )

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.past: list[tuple[str, ...]] = []
        """Joint moves of the completed rounds."""
        return super().deal(rng, options)

    def payoff(self, joint: tuple[str, ...]) -> Mapping[str, float] | None:
        rewards = dict(zip(self.seats, map(float, self._cell(joint)), strict=True))
        self.past.append(joint)
        if len(self.past) == self.rounds:
            return rewards
        self.add_rewards(rewards, cause=f"round {len(self.past)}")
        return None

    def observed_history(self, agent: str) -> str:
        """Return a word per completed round: its number, the agent's own move, and the others' moves in seat order."""
        index = self.seats.index(agent)
        words: list[str] = []
        for number, joint in enumerate(self.past, 1):
            words.append("_".join([str(number), joint[index], *joint[:index], *joint[index + 1 :]]))
        return " ".join(words)

    def _cell(self, joint: tuple[str, ...]) -> np.ndarray:
        """Return the payoffs of a joint move, one per player."""
        indices = [menu.index(move) for menu, move in zip(self.action_sets.values(), joint, strict=True)]
        return self.cells[tuple(indices)]
