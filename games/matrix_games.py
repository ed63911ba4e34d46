"""Simultaneous games: the common base, team matrix games, QMIX's two-step game and coalition games."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from string import ascii_lowercase
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from marl.core.config import choices_hint
from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig, format_move_menu
from marl.protocols import GameStart

MATRIX_PRESETS: dict[str, list[Any]] = {
    "climbing": [[11, -30, 0], [-30, 7, 0], [0, 6, 5]],
    "qtran": [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]],
    "penalty": [[-100, 0, 10], [0, 2, 0], [10, 0, -100]],
    "qmix_2b": [[0, 1], [1, 8]],
    "matching": [[1, 0], [0, 1]],
    "additive": [[0, 2], [1, 3]],
    "and": [[[0, 0], [0, 0]], [[0, 0], [0, 1]]],
    "or": [[[0, 1], [1, 1]], [[1, 1], [1, 1]]],
}
"""Name of a matrix game -> its payoffs. climbing and penalty (k = -100): Claus and Boutilier, 1998. qtran: arXiv
1905.05408. qmix_2b: state 2B of QMIX's two-step game, arXiv 1803.11485. and, or: Boolean functions of three agents'
moves, with `b` for true."""
TWO_STEP_MOVES = ("a", "b")
TWO_STEP_PAYOFFS = {"2A": ((7.0, 7.0), (7.0, 7.0)), "2B": ((0.0, 1.0), (1.0, 8.0))}
"""State of the second step -> payoffs, with `agent_0`'s move as the row and `agent_1`'s move as the column."""
CharacteristicFunction = Callable[[frozenset[int]], float]
"""Characteristic function of a coalition game: set of agents' indices -> value of this coalition."""
IN, OUT = "in", "out"


def _weighted_voting_game(weights: Sequence[float], quota: float) -> CharacteristicFunction:
    """Return the game in which a coalition has value 1 if the sum of its agents' `weights` reaches `quota`, else 0."""
    return lambda coalition: float(sum(weights[agent] for agent in coalition) >= quota)


COALITION_PRESETS: dict[str, tuple[int, CharacteristicFunction]] = {
    "majority": (3, _weighted_voting_game((1, 1, 1), 2)),
    "glove": (3, lambda coalition: float(min(len(coalition & {0}), len(coalition & {1, 2})))),
    "voting": (4, _weighted_voting_game((4, 3, 2, 1), 6)),
    "veto": (3, _weighted_voting_game((50, 49, 1), 51)),
    "dummy": (4, _weighted_voting_game((40, 22, 30, 9), 51)),
    "airport": (3, lambda coalition: max((agent + 1.0 for agent in coalition), default=0.0)),
    "additive": (3, lambda coalition: sum(agent + 1.0 for agent in coalition)),
}
"""Name of a coalition game -> (number of agents, characteristic function). glove: the number of pairs, where agent_0
has a left glove and the others have right gloves. voting: weights 4, 3, 2, 1, quota 6. veto: 50, 49, 1, quota 51.
dummy: 40, 22, 30, 9, quota 51. airport: the largest of the members' needs 1, 2, 3. additive: the sum of 1, 2, 3."""


def parse_payoff_table(table: list[Any], valid_tables_hint: str, *, per_player: bool) -> np.ndarray:
    """Return the payoffs in `table` as a float64 array with one dimension per agent.

    `per_player`: a last dimension holds one payoff per agent. Raises ValueError if `table` is ragged, empty, not finite
    or has more moves than letters; the message ends with `valid_tables_hint`, a description of valid tables.
    """
    try:
        cells = np.array(table, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"table: {table} is no table; {valid_tables_hint}") from None
    if per_player and (not cells.size or not np.isfinite(cells).all() or cells.shape[-1] != cells.ndim - 1):
        raise ValueError(f"table: {table} is no table for {max(cells.ndim - 1, 1)} players; {valid_tables_hint}")
    if not cells.size or not np.isfinite(cells).all():
        raise ValueError(f"table: {table} has no cells or infinite ones; choices: finite numbers")
    if max(cells.shape) > len(ascii_lowercase):
        raise ValueError(f"table: {max(cells.shape)} moves; choices: at most {len(ascii_lowercase)}")
    return cells


class SimultaneousConfig(TextGameConfig):
    """Base of the settings of simultaneous games, which have a single start state."""

    simultaneous = True

    def all_start_states(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class SimultaneousGame(TextGame):
    """Base of games in rounds: in each round all agents move at once, by default for a common reward.

    An agent reads only its own turns, so no move depends on another move of the same round.
    """

    common_reward = True
    rules = (
        "A team plays. In each round all players choose a move at the same time, and none of them sees the choices of "
        "the others. All get the same payoff, which depends on all their moves. Choose so that it is high."
    )

    agent_prefix: ClassVar[str] = "agent"
    """Prefix of the agents' names: the agents are `agent_0`, `agent_1`, ..."""

    def __init__(
        self, illegal: IllegalMoveHandling, menus: Sequence[tuple[str, ...]], worst_payoff: float = 0.0
    ) -> None:
        """`menus` holds the moves of each agent; `worst_payoff` is the lowest possible return of an agent."""
        self.moves_by_player = {f"{self.agent_prefix}_{index}": menu for index, menu in enumerate(menus)}
        super().__init__(tuple(self.moves_by_player), illegal, tuple(dict.fromkeys(chain.from_iterable(menus))))
        if illegal.penalty is None:
            self.penalty = max(self.default_penalty, -worst_payoff)

    def payoff(self, joint_move: tuple[str, ...]) -> float | Mapping[str, float] | None:
        """Return the final rewards for a joint move in seat order: agent -> reward, or a common reward.

        None means that another round follows.
        """
        raise NotImplementedError

    def observed_history(self, agent: str) -> str:
        """Return the observations of `agent` from earlier rounds as text, or "" if there is nothing to observe."""
        return ""

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.pending_actions: tuple[str, ...] = ()
        """Moves of the current round so far, in seat order."""
        return self.seats[0]

    def start_state_key(self) -> str:
        return self.name

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.moves_by_player[agent]

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        return self.seats[self.seats.index(agent) :]

    def describe_observation(self, agent: str) -> str:
        menu = format_move_menu(self.legal_actions(agent))
        return " . ".join(filter(None, (agent, self.observed_history(agent), f"choose {menu}")))

    def information_state(self, agent: str) -> str:
        return " ".join(filter(None, (agent, self.observed_history(agent))))

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        joint_move = (*self.pending_actions, action)
        if len(joint_move) < len(self.seats):
            self.pending_actions = joint_move
            return self.seats[len(joint_move)]
        # All agents have chosen a move, so the payoff of this round is paid.
        payoff = self.payoff(joint_move)
        self.pending_actions = ()
        if payoff is None:
            return self.seats[0]
        return payoff if isinstance(payoff, Mapping) else dict.fromkeys(self.seats, payoff)


class MatrixConfig(SimultaneousConfig):
    """Matrix game of a team. An illegal move ends the game and costs as much as the worst cell, at least 1."""

    kind: str = "matrix"
    example = "table: climbing"
    table: str | list[Any]
    """Payoffs: the name climbing, qtran, penalty, qmix_2b, matching, additive, and, or; or nested lists of numbers, one
    level for each agent: `table[i][j]` is the payoff of the i-th move of `agent_0` and the j-th of `agent_1`. The moves
    are a, b, c ..."""

    @field_validator("table")
    @classmethod
    def _check_payoff_table(cls, table: str | list[Any]) -> str | list[Any]:
        if isinstance(table, str):
            if table not in MATRIX_PRESETS:
                raise ValueError(f"table: no preset {table!r}; {choices_hint(table, MATRIX_PRESETS)}")
            return table
        parse_payoff_table(table, "choices: nested lists of numbers, all of one length", per_player=False)
        return table

    def build(self) -> MatrixGame:
        return MatrixGame(self)


class MatrixGame(SimultaneousGame):
    """Matrix game of one round: every agent gets the payoff of the joint move. No agent sees the table."""

    name = "matrix"

    def __init__(self, config: MatrixConfig) -> None:
        table = MATRIX_PRESETS[config.table] if isinstance(config.table, str) else config.table
        self.cells = np.array(table, dtype=np.float64)
        """Payoffs, with one dimension per agent."""
        menus = [tuple(ascii_lowercase[:count]) for count in self.cells.shape]
        super().__init__(config.illegal, menus, float(self.cells.min()))

    def payoff(self, joint_move: tuple[str, ...]) -> float:
        return float(self.cells[tuple(map(ascii_lowercase.index, joint_move))])


class TwoStepConfig(SimultaneousConfig):
    """QMIX's two-step game (arXiv 1803.11485, section 5). An illegal move ends the game and costs 1."""

    kind: str = "two_step"

    def build(self) -> TwoStepGame:
        return TwoStepGame(self)


class TwoStepGame(SimultaneousGame):
    """QMIX's two-step game: in state 1, `agent_0` chooses state 2A (`a`) or 2B (`b`); there the joint move is paid."""

    name = "two_step"

    def __init__(self, config: TwoStepConfig) -> None:
        super().__init__(config.illegal, [TWO_STEP_MOVES, TWO_STEP_MOVES])

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.state_name = "1"
        return super().start_new_game(rng, options)

    def observed_history(self, agent: str) -> str:
        return f"state {self.state_name}"

    def payoff(self, joint_move: tuple[str, ...]) -> float | None:
        if self.state_name == "1":
            self.state_name = "2A" if joint_move[0] == "a" else "2B"
            return None
        row, column = map(TWO_STEP_MOVES.index, joint_move)
        return TWO_STEP_PAYOFFS[self.state_name][row][column]


class CoalitionConfig(SimultaneousConfig):
    """Coalition game by `preset`, by `weights` and `quota`, or by `values`. An illegal move costs all at least 1."""

    kind: str = "coalition"
    example = "preset: majority"
    preset: str | None = None
    """Name of a predefined game: majority, glove, voting, veto, dummy, airport, additive."""
    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """Weight of each agent: the value of a coalition is 1 if the sum of its weights reaches `quota`, else 0."""
    quota: float | None = None
    """Smallest sum of `weights` with which a coalition has value 1."""
    values: tuple[float, ...] | None = None
    """Value of each of the 2^n coalitions. Coalition number `c` contains `agent_i` if bit i of `c` is set: the first is
    empty, the second `agent_0` alone, the third `agent_1` alone, the fourth both."""

    @model_validator(mode="after")
    def _check_coalition_values_given(self) -> Self:
        given = {"preset": self.preset, "weights": self.weights, "values": self.values}
        names = [name for name, setting in given.items() if setting is not None]
        if len(names) != 1:
            raise ValueError(f"give one of preset, weights, values (got {', '.join(names) or 'none'})")
        if (self.weights is None) != (self.quota is None):
            raise ValueError(f"quota: {self.quota} with weights: {self.weights}; choices: both or neither")
        if self.preset is not None and self.preset not in COALITION_PRESETS:
            raise ValueError(f"preset: no preset {self.preset!r}; {choices_hint(self.preset, COALITION_PRESETS)}")
        # `values` has one value per coalition of the players, so their number must be a power of two.
        count = len(self.values or (0, 0))
        if count < 2 or count & (count - 1):
            raise ValueError(f"values: {count} of them; choices: 2, 4, 8, ...: one for each coalition")
        return self

    def build(self) -> CoalitionGame:
        return CoalitionGame(self)


class CoalitionGame(SimultaneousGame):
    """Coalition game: all agents choose `in` or `out` at once; each gets the value of the coalition that chose `in`."""

    name = "coalition"

    def __init__(self, config: CoalitionConfig) -> None:
        values = config.values or ()
        self.value: CharacteristicFunction
        if config.preset is not None:
            count, self.value = COALITION_PRESETS[config.preset]
        elif config.weights is not None and config.quota is not None:
            count, self.value = len(config.weights), _weighted_voting_game(config.weights, config.quota)
        else:
            count = len(values).bit_length() - 1
            self.value = lambda coalition: values[sum(1 << agent for agent in coalition)]
        super().__init__(config.illegal, [(IN, OUT)] * count, min(values, default=0.0))

    def payoff(self, joint_move: tuple[str, ...]) -> float:
        return self.value(frozenset(agent for agent, move in enumerate(joint_move) if move == IN))
