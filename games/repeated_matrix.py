"""General-sum matrix games with one payoff per player, for one or several rounds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from string import ascii_lowercase
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import AfterValidator, Field, field_validator, model_validator

from marl.core.config import choices_hint
from marl.engines.scripted import ScriptedConfig
from marl.games.base import NextAgent
from marl.games.matrix_games import SimultaneousConfig, SimultaneousGame, parse_payoff_table
from marl.protocols import EngineConfig


def _word(name: str) -> str:
    """Return `name`, the name of a move. Raise ValueError unless it is one word of ASCII letters and digits."""
    if not (name.isascii() and name.isalnum()):
        raise ValueError("must have only letters from a to z and digits")
    return name


Word = Annotated[str, AfterValidator(_word)]


class StageGame(NamedTuple):
    """Moves and payoffs of one round of a repeated matrix game."""

    moves: tuple[tuple[str, ...], ...]
    """Names of the moves of each player."""
    cells: Any
    """Payoffs as nested lists with one level per player; the innermost lists hold one payoff per player."""


def _zero_sum_stage_game(moves: tuple[str, ...], first_player_payoffs: list[list[float]]) -> StageGame:
    """Return a zero-sum game of two players with the same moves, one row of payoffs per move of the first player."""
    cells: list[list[list[float]]] = []
    for row in first_player_payoffs:
        cells.append([[payoff, -payoff] for payoff in row])
    return StageGame((moves, moves), cells)


_RPS = ("rock", "paper", "scissors")
STAGE_GAMES: dict[str, StageGame] = {
    "rock_paper_scissors": _zero_sum_stage_game(_RPS, [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]),
    "biased_rock_paper_scissors": _zero_sum_stage_game(_RPS, [[0, -25, 50], [25, 0, -5], [-50, 5, 0]]),
    "matching_pennies": _zero_sum_stage_game(("heads", "tails"), [[1, -1], [-1, 1]]),
    "shapley": StageGame((_RPS, _RPS), [[[0, 0], [0, 1], [1, 0]], [[1, 0], [0, 0], [0, 1]], [[0, 1], [1, 0], [0, 0]]]),
    "prisoners_dilemma": StageGame((("cooperate", "defect"),) * 2, [[[5, 5], [0, 10]], [[10, 0], [1, 1]]]),
    "chicken": StageGame((("dare", "chicken"),) * 2, [[[0, 0], [4, 1]], [[1, 4], [3, 3]]]),
    "stag_hunt": StageGame((("stag", "hare"),) * 2, [[[2, 2], [0, 1]], [[1, 0], [1, 1]]]),
}
"""Name of a predefined game -> moves and payoffs, as in OpenSpiel. In shapley, fictitious play never converges."""


class TitForTat(ScriptedConfig):
    """Tit for tat: repeats the opponent's last move, and starts with the first legal move (Axelrod, 1980)."""

    kind: str = "tit_for_tat"

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        _, *rounds = state.split()
        last = rounds[-1].split("_")[-1] if rounds else ""
        return {last if last in moves else moves[0]: 1.0}


class RepeatedMatrixConfig(SimultaneousConfig):
    """Matrix game that is paid in each of its rounds. An illegal move costs the worst possible return, at least 1."""

    kind: str = "repeated_matrix"
    example = "table: rock_paper_scissors"
    table: str | list[Any]
    """Payoffs: the name rock_paper_scissors, biased_rock_paper_scissors, matching_pennies, shapley, prisoners_dilemma,
    chicken, stag_hunt; or nested lists of numbers with one level for each player: `table[i][j]` holds the payoffs of
    `player_0` and `player_1` for the i-th move of `player_0` and the j-th of `player_1`."""
    moves: tuple[tuple[Word, ...], ...] | None = None
    """Names of each player's moves (default: the names of a predefined table, else a, b, c ...)."""
    rounds: int = Field(default=1, ge=1, le=1000)
    """Number of rounds of an episode. Every player sees all moves of earlier rounds."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str | list[Any]) -> str | list[Any]:
        if isinstance(table, str):
            if table not in STAGE_GAMES:
                raise ValueError(f"table: no preset {table!r}; {choices_hint(table, STAGE_GAMES)}")
            return table
        form = "choices: nested lists of numbers, one level for each player, innermost the payoff of each"
        parse_payoff_table(table, form, per_player=True)
        return table

    @model_validator(mode="after")
    def _check_moves(self) -> Self:
        counts = list(self.payoff_array.shape[:-1])
        if self.moves is None:
            return self
        # Names of moves must differ in more than their case, because a role may read moves without regard to case.
        distinct_names = [{move.lower() for move in menu} for menu in self.moves]
        if list(map(len, distinct_names)) != counts:
            raise ValueError(f"moves: {self.moves}; choices: {counts} different names, as in the table")
        return self

    @property
    def payoff_array(self) -> np.ndarray:
        """Payoffs as an array with one dimension per player's move, and a last one for the player who is paid."""
        return np.array(STAGE_GAMES[self.table].cells if isinstance(self.table, str) else self.table, dtype=np.float64)

    @property
    def moves_by_player(self) -> tuple[tuple[str, ...], ...]:
        """Names of the moves of each player."""
        if self.moves is not None:
            return self.moves
        if isinstance(self.table, str):
            return STAGE_GAMES[self.table].moves
        return tuple(tuple(ascii_lowercase[:count]) for count in self.payoff_array.shape[:-1])

    def build(self) -> RepeatedMatrixGame:
        return RepeatedMatrixGame(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"tit_for_tat": TitForTat()} if len(self.moves_by_player) == 2 else {}


class RepeatedMatrixGame(SimultaneousGame):
    """Repeated matrix game: in each round all players move at once, and each gets its own payoff of the joint move."""

    name = "repeated_matrix"
    agent_prefix = "player"
    common_reward = False

    def __init__(self, config: RepeatedMatrixConfig) -> None:
        self.cells, self.rounds = config.payoff_array, config.rounds
        self.zero_sum = bool(np.allclose(self.cells.sum(axis=-1), 0.0))
        super().__init__(config.illegal, config.moves_by_player, config.rounds * float(self.cells.min()))
        players = ", ".join(f"`{seat}`" for seat in self.seats)
        payoffs: list[str] = []
        # Both `product` and `reshape` vary the move of the last player fastest.
        rows = self.cells.reshape(-1, len(self.seats))
        for joint_move, row in zip(product(*self.moves_by_player.values()), rows, strict=True):
            numbers = [f"{payoff:g}" for payoff in row]
            payoffs.append(f"{', '.join(joint_move)}: {', '.join(numbers)}")
        self.rules = (
            f"The players {players} play {self.rounds} round{'s' * (self.rounds > 1)}. In each, all choose a move at "
            "the same time, and none sees the choices of the others before. Then each is paid points of its own. "
            "These are the moves, in the order of the players, and the points that each is paid: "
            f"{'; '.join(payoffs)}. You are "
            "told who you are, and of each round before its number, your own move, and those of the others in order."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.past: list[tuple[str, ...]] = []
        """Joint move of each completed round, in seat order."""
        return super().start_new_game(rng, options)

    def payoff(self, joint_move: tuple[str, ...]) -> Mapping[str, float] | None:
        indices = [menu.index(move) for menu, move in zip(self.moves_by_player.values(), joint_move, strict=True)]
        rewards = dict(zip(self.seats, map(float, self.cells[tuple(indices)]), strict=True))
        self.past.append(joint_move)
        if len(self.past) == self.rounds:
            return rewards
        self.add_rewards(rewards, cause=f"round {len(self.past)}")
        return None

    def observed_history(self, agent: str) -> str:
        """Return a word per completed round: its number, the agent's move, and the others' moves in seat order."""
        index = self.seats.index(agent)
        words: list[str] = []
        for number, joint_move in enumerate(self.past, 1):
            words.append("_".join([str(number), joint_move[index], *joint_move[:index], *joint_move[index + 1 :]]))
        return " ".join(words)
