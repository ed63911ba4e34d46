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
from marl.games.base import IllegalMoveHandling, TextGame, TextGameConfig
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
"""Name -> payoffs. climbing, penalty (k = -100): Claus and Boutilier, 1998. qtran: arXiv 1905.05408. qmix_2b: state 2B
of QMIX's two-step game, arXiv 1803.11485. and, or: Boolean functions of three agents' moves, with `b` for true."""
TWO_STEP_MOVES = ("a", "b")
TWO_STEP_PAYOFFS = {"2A": ((7.0, 7.0), (7.0, 7.0)), "2B": ((0.0, 1.0), (1.0, 8.0))}
"""State of the second step -> payoffs by `agent_0`'s move (row) and `agent_1`'s (column)."""
CharacteristicFunction = Callable[[frozenset[int]], float]
"""Coalition (indices of agents) -> value."""
IN, OUT = "in", "out"


def _voting(weights: Sequence[float], quota: float) -> CharacteristicFunction:
    return lambda coalition: float(sum(weights[agent] for agent in coalition) >= quota)


COALITION_PRESETS: dict[str, tuple[int, CharacteristicFunction]] = {
    "majority": (3, _voting((1, 1, 1), 2)),
    "glove": (3, lambda coalition: float(min(len(coalition & {0}), len(coalition & {1, 2})))),
    "voting": (4, _voting((4, 3, 2, 1), 6)),
    "veto": (3, _voting((50, 49, 1), 51)),
    "dummy": (4, _voting((40, 22, 30, 9), 51)),
    "airport": (3, lambda coalition: max((agent + 1.0 for agent in coalition), default=0.0)),
    "additive": (3, lambda coalition: sum(agent + 1.0 for agent in coalition)),
}
"""Name -> (number of agents, value). glove: the number of pairs; agent_0 has a left glove, the others right gloves.
voting: weights 4, 3, 2, 1, quota 6. veto: 50, 49, 1, quota 51. dummy: 40, 22, 30, 9, quota 51. airport: a runway
as long as the longest need of 1, 2, 3. additive: 1, 2, 3."""


def payoff_cells(table: list[Any], form: str, *, per_player: bool) -> np.ndarray:
    """Return a payoff table as an array with one dimension per agent, checked.

    `per_player`: a last dimension holds one payoff per agent. Raises ValueError if the table is ragged, empty, not
    finite or has more moves than letters; the message ends with `form`, the allowed tables.
    """
    try:
        cells = np.array(table, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"table: {table} is no table; {form}") from None
    if per_player and (not cells.size or not np.isfinite(cells).all() or cells.shape[-1] != cells.ndim - 1):
        raise ValueError(f"table: {table} is no table for {max(cells.ndim - 1, 1)} players; {form}")
    if not cells.size or not np.isfinite(cells).all():
        raise ValueError(f"table: {table} has no cells or infinite ones; choices: finite numbers")
    if max(cells.shape) > len(ascii_lowercase):
        raise ValueError(f"table: {max(cells.shape)} moves; choices: at most {len(ascii_lowercase)}")
    return cells


class SimultaneousConfig(TextGameConfig):
    """Settings of a simultaneous game, which has a single start."""

    def starts(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class SimultaneousGame(TextGame):
    """Base of games in rounds: in each round all agents move at once, by default for a common reward.

    An agent hears only its own turns, so no move depends on another move of the same round.
    """

    common_reward = True
    rules = (
        "A team plays. In each round all players choose a move at the same time, and none of them sees the choices of "
        "the others. All get the same payoff, which depends on all their moves. Choose so that it is high."
    )

    agent_prefix: ClassVar[str] = "agent"
    """Prefix of the agents' names, which end in `_` and the index."""

    def __init__(
        self, illegal: IllegalMoveHandling, menus: Sequence[tuple[str, ...]], worst_payoff: float = 0.0
    ) -> None:
        """`menus`: the moves of each agent; `worst_payoff`: lowest possible return of an agent over all rounds."""
        self.action_sets = {f"{self.agent_prefix}_{index}": menu for index, menu in enumerate(menus)}
        super().__init__(tuple(self.action_sets), illegal, tuple(dict.fromkeys(chain.from_iterable(menus))))
        if illegal.penalty is None:
            self.penalty = max(self.default_penalty, -worst_payoff)

    def payoff(self, joint: tuple[str, ...]) -> float | Mapping[str, float] | None:
        """Return the final rewards for the joint move (in seat order), one number if common; None: a round follows."""
        raise NotImplementedError

    def observed_history(self, agent: str) -> str:
        """Return the agent's observations of earlier rounds as text, or "" without any."""
        return ""

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.pending_actions: tuple[str, ...] = ()
        """Moves in this round so far, in seat order."""
        return self.seats[0]

    def start_key(self) -> str:
        return self.name

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.action_sets[agent]

    def hears(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def together(self, agent: str) -> tuple[str, ...]:
        return self.seats[self.seats.index(agent) :]

    def describe(self, agent: str) -> str:
        menu = " ".join(f"[{move}]" for move in self.legal_actions(agent))
        return " . ".join(filter(None, (agent, self.observed_history(agent), f"choose {menu}")))

    def information_state(self, agent: str) -> str:
        return " ".join(filter(None, (agent, self.observed_history(agent))))

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        joint = (*self.pending_actions, action)
        if len(joint) < len(self.seats):
            self.pending_actions = joint
            return self.seats[len(joint)]
        payoff = self.payoff(joint)
        self.pending_actions = ()
        if payoff is None:
            return self.seats[0]
        return payoff if isinstance(payoff, Mapping) else dict.fromkeys(self.seats, payoff)


class MatrixConfig(SimultaneousConfig):
    """Matrix game of a team. An illegal move ends the game and costs as much as the worst cell, at least 1."""

    kind: str = "matrix"
    example = "table: climbing"
    table: str | list[Any]
    """Payoffs: climbing, qtran, penalty, qmix_2b, matching, additive, and, or; or nested lists of numbers, one level
    for each agent: `table[i][j]` is the payoff of the i-th move of `agent_0` and the j-th of `agent_1`; moves are a, b,
    c ..."""

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str | list[Any]) -> str | list[Any]:
        if isinstance(table, str):
            if table not in MATRIX_PRESETS:
                raise ValueError(f"table: no preset {table!r}; {choices_hint(table, MATRIX_PRESETS)}")
            return table
        payoff_cells(table, "choices: nested lists of numbers, all of one length", per_player=False)
        return table

    @property
    def cells(self) -> np.ndarray:
        """Payoffs, with one dimension per agent."""
        return np.array(MATRIX_PRESETS[self.table] if isinstance(self.table, str) else self.table, dtype=np.float64)

    def build(self) -> MatrixGame:
        return MatrixGame(self)


class MatrixGame(SimultaneousGame):
    """One round: every agent gets the payoff in the cell of the joint move. No agent sees the table."""

    name = "matrix"

    def __init__(self, config: MatrixConfig) -> None:
        self.cells = config.cells
        menus = [tuple(ascii_lowercase[:count]) for count in self.cells.shape]
        super().__init__(config.illegal, menus, float(self.cells.min()))

    def payoff(self, joint: tuple[str, ...]) -> float:
        return float(self.cells[tuple(map(ascii_lowercase.index, joint))])


class TwoStepConfig(SimultaneousConfig):
    """QMIX's two-step game (arXiv 1803.11485, section 5). An illegal move ends the game and costs 1."""

    kind: str = "two_step"

    def build(self) -> TwoStepGame:
        return TwoStepGame(self)


class TwoStepGame(SimultaneousGame):
    """In state 1, the move of `agent_0` leads to state 2A (`a`) or 2B (`b`), where the joint move pays both agents."""

    name = "two_step"

    def __init__(self, config: TwoStepConfig) -> None:
        super().__init__(config.illegal, [TWO_STEP_MOVES, TWO_STEP_MOVES])

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.state_name = "1"
        return super().deal(rng, options)

    def observed_history(self, agent: str) -> str:
        return f"state {self.state_name}"

    def payoff(self, joint: tuple[str, ...]) -> float | None:
        if self.state_name == "1":
            self.state_name = "2A" if joint[0] == "a" else "2B"
            return None
        row, column = map(TWO_STEP_MOVES.index, joint)
        return TWO_STEP_PAYOFFS[self.state_name][row][column]


class CoalitionConfig(SimultaneousConfig):
    """Coalition game, set by `preset`, by `weights` and `quota`, or by `values`. Illegal moves cost all at least 1."""

    kind: str = "coalition"
    example = "preset: majority"
    preset: str | None = None
    """Name of a predefined game: majority, glove, voting, veto, dummy, airport, additive."""
    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """Weight of each agent's vote: a coalition's value is 1 if its weights reach `quota`, else 0."""
    quota: float | None = None
    """Minimum sum of `weights` of a coalition with value 1."""
    values: tuple[float, ...] | None = None
    """Value of each of the 2^n coalitions. Coalition number `c` contains `agent_i` if bit i of `c` is set: the first is
    empty, the second `agent_0` alone, the third `agent_1` alone, the fourth both."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        names = [name for name in ("preset", "weights", "values") if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"give one of preset, weights, values (got {', '.join(names) or 'none'})")
        if (self.weights is None) != (self.quota is None):
            raise ValueError(f"quota: {self.quota} with weights: {self.weights}; choices: both or neither")
        if self.preset is not None and self.preset not in COALITION_PRESETS:
            raise ValueError(f"preset: no preset {self.preset!r}; {choices_hint(self.preset, COALITION_PRESETS)}")
        count = len(self.values or (0, 0))
        if count < 2 or count & (count - 1):
            raise ValueError(f"values: {count} of them; choices: 2, 4, 8, ...: one for each coalition")
        return self

    @property
    def agents_and_value(self) -> tuple[int, CharacteristicFunction]:
        """Number of agents, and the characteristic function of the game."""
        if self.preset is not None:
            return COALITION_PRESETS[self.preset]
        if self.weights is not None and self.quota is not None:
            return len(self.weights), _voting(self.weights, self.quota)
        values = self.values or ()
        return len(values).bit_length() - 1, lambda coalition: values[sum(1 << agent for agent in coalition)]

    def build(self) -> CoalitionGame:
        return CoalitionGame(self)


class CoalitionGame(SimultaneousGame):
    """Coalition game: all agents choose `in` or `out` at once, and each gets the value of the coalition of `in`."""

    name = "coalition"

    def __init__(self, config: CoalitionConfig) -> None:
        count, self.value = config.agents_and_value
        super().__init__(config.illegal, [(IN, OUT)] * count, min(config.values or (0.0,)))

    def payoff(self, joint: tuple[str, ...]) -> float:
        return self.value(frozenset(agent for agent, move in enumerate(joint) if move == IN))
