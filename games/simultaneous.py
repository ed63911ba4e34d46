"""Games with simultaneous moves, and those with a common reward: matrix games, QMIX's two-step game, coalitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from games.base import IllegalMove, TextGame, TextGameConfig
from marl.config import nearest
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
"""Climbing and penalty (k = -100): Claus and Boutilier 1998. qtran: arXiv 1905.05408. qmix_2b: state 2B of QMIX's
two-step game, arXiv 1803.11485. and, or: of three agents, whose move `b` stands for true."""
TWO_STEP_MOVES = ("a", "b")
TWO_STEP_PAYOFFS = {"2A": ((7.0, 7.0), (7.0, 7.0)), "2B": ((0.0, 1.0), (1.0, 8.0))}
"""State of the second step -> payoffs by `agent_0`'s move (row) and `agent_1`'s (column)."""
CoalitionValue = Callable[[frozenset[int]], float]
"""Coalition (agents by number) -> its value."""
IN, OUT = "in", "out"


def _voting(weights: Sequence[float], quota: float) -> CoalitionValue:
    return lambda coalition: float(sum(weights[agent] for agent in coalition) >= quota)


COALITION_PRESETS: dict[str, tuple[int, CoalitionValue]] = {
    "majority": (3, _voting((1, 1, 1), 2)),
    "glove": (3, lambda coalition: float(min(len(coalition & {0}), len(coalition & {1, 2})))),
    "voting": (4, _voting((4, 3, 2, 1), 6)),
    "veto": (3, _voting((50, 49, 1), 51)),
    "dummy": (4, _voting((40, 22, 30, 9), 51)),
    "airport": (3, lambda coalition: max((agent + 1.0 for agent in coalition), default=0.0)),
    "additive": (3, lambda coalition: sum(agent + 1.0 for agent in coalition)),
}
"""Name -> (number of agents, value). glove: agent_0 has a left one, the others right ones. voting: weights 4, 3, 2, 1,
quota 6. veto: 50, 49, 1, quota 51. dummy: 40, 22, 30, 9, quota 51. airport: a runway for the longest need of 1, 2, 3.
additive: 1, 2, 3."""


class SimultaneousConfig(TextGameConfig):
    """Settings of a simultaneous game: it has one start."""

    def starts(self) -> tuple[GameStart, ...]:
        return (GameStart(1.0, {}),)


class SimultaneousGame(TextGame):
    """Base of games with one or more rounds, in each of which all agents move at once; of team games as it is.

    An agent hears its own turns only, so that no move depends on another one of the same round.
    """

    common = True
    rules = (
        "A team plays. In each round all players choose a move at the same time, and none of them sees the choices of "
        "the others. All get the same payoff, which depends on all their moves. Choose so that it is high."
    )

    seat: ClassVar[str] = "agent"
    """Agents are called so, with their number."""

    def __init__(self, illegal: IllegalMove, menus: Sequence[tuple[str, ...]], worst_payoff: float = 0.0) -> None:
        """`menus` holds the moves of each agent, `worst_payoff` the least that one can be paid in all rounds."""
        self.menus = {f"{self.seat}_{index}": menu for index, menu in enumerate(menus)}
        super().__init__(tuple(self.menus), illegal, tuple(dict.fromkeys(move for menu in menus for move in menu)))
        if illegal.penalty is None:
            self.cost = max(self.foul, -worst_payoff)

    def payoff(self, joint: tuple[str, ...]) -> float | Mapping[str, float] | None:
        """Return what the joint move (in seat order) pays each agent at the end, or all; None if a round follows."""
        raise NotImplementedError

    def known(self, agent: str) -> str:
        """Return all that `agent` has seen of the rounds before, in words; "" if nothing."""
        return ""

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.joint: tuple[str, ...] = ()
        """The moves of this round so far."""
        return self.seats[0]

    def start_key(self) -> str:
        return self.name

    def legal(self, agent: str) -> tuple[str, ...]:
        return self.menus[agent]

    def hears(self, agent: str) -> tuple[str, ...]:
        return (agent,)

    def together(self, agent: str) -> tuple[str, ...]:
        return self.seats[self.seats.index(agent) :]

    def describe(self, agent: str) -> str:
        menu = " ".join(f"[{move}]" for move in self.legal(agent))
        return " . ".join(filter(None, (agent, self.known(agent), f"choose {menu}")))

    def state_of(self, agent: str) -> str:
        return " ".join(filter(None, (agent, self.known(agent))))

    def move(self, action: str) -> str | Mapping[str, float]:
        joint = (*self.joint, action)
        if len(joint) < len(self.seats):
            self.joint = joint
            return self.seats[len(joint)]
        payoff = self.payoff(joint)
        self.joint = ()
        if payoff is None:
            return self.seats[0]
        return payoff if isinstance(payoff, Mapping) else dict.fromkeys(self.seats, payoff)


class MatrixConfig(SimultaneousConfig):
    """A matrix game of a team. An illegal move ends it at the cost of its worst cell, and of 1 at the least."""

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
                raise ValueError(f"table: no preset {table!r}; {nearest(table, MATRIX_PRESETS)}")
            return table
        try:
            cells = np.array(table, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"table: {table} is no table; choices: nested lists of numbers, all of one length"
            ) from None
        if not cells.size or not np.isfinite(cells).all():
            raise ValueError(f"table: {table} has no cells or infinite ones; choices: finite numbers")
        if max(cells.shape) > len(ascii_lowercase):
            raise ValueError(f"table: {max(cells.shape)} moves; choices: at most {len(ascii_lowercase)}")
        return table

    @property
    def cells(self) -> np.ndarray:
        """Payoffs, with one dimension for each agent."""
        return np.array(MATRIX_PRESETS[self.table] if isinstance(self.table, str) else self.table, dtype=np.float64)

    def build(self) -> Matrix:
        return Matrix(self)


class Matrix(SimultaneousGame):
    """One round: the cell of the joint move is paid to every agent. Nobody sees the table."""

    name = "matrix"

    def __init__(self, config: MatrixConfig) -> None:
        self.cells = config.cells
        menus = [tuple(ascii_lowercase[:count]) for count in self.cells.shape]
        super().__init__(config.illegal, menus, float(self.cells.min()))

    def payoff(self, joint: tuple[str, ...]) -> float:
        return float(self.cells[tuple(map(ascii_lowercase.index, joint))])


class TwoStepConfig(SimultaneousConfig):
    """QMIX's two-step game (arXiv 1803.11485, section 5). An illegal move ends it at a cost of 1."""

    kind: str = "two_step"

    def build(self) -> TwoStep:
        return TwoStep(self)


class TwoStep(SimultaneousGame):
    """In state 1, `agent_0` decides: `a` leads to 2A, `b` to 2B. Both see the state; only the second step pays."""

    name = "two_step"

    def __init__(self, config: TwoStepConfig) -> None:
        super().__init__(config.illegal, [TWO_STEP_MOVES, TWO_STEP_MOVES])

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.state_name = "1"
        return super().deal(rng, options)

    def known(self, agent: str) -> str:
        return f"state {self.state_name}"

    def payoff(self, joint: tuple[str, ...]) -> float | None:
        if self.state_name == "1":
            self.state_name = "2A" if joint[0] == "a" else "2B"
            return None
        row, column = map(TWO_STEP_MOVES.index, joint)
        return TWO_STEP_PAYOFFS[self.state_name][row][column]


class CoalitionConfig(SimultaneousConfig):
    """A cooperative game. Give `preset`, or `weights` and `quota`, or `values`. Illegal moves cost all at least 1."""

    kind: str = "coalition"
    example = "preset: majority"
    preset: str | None = None
    """A named game: majority, glove, voting, veto, dummy, airport, additive."""
    weights: tuple[float, ...] | None = Field(default=None, min_length=1)
    """Weight of each agent's vote: a coalition's value is 1 if its weights reach `quota`, else 0."""
    quota: float | None = None
    """Sum of `weights` from which a coalition's value is 1."""
    values: tuple[float, ...] | None = None
    """Value of each coalition, all 2^n of them: number `c` holds `agent_i` if bit i of `c` is set, so that the first is
    the empty one, the second `agent_0` alone, the third `agent_1` alone, the fourth both."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        names = [name for name in ("preset", "weights", "values") if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"give one of preset, weights, values (got {', '.join(names) or 'none'})")
        if (self.weights is None) != (self.quota is None):
            raise ValueError(f"quota: {self.quota} with weights: {self.weights}; choices: both or neither")
        if self.preset is not None and self.preset not in COALITION_PRESETS:
            raise ValueError(f"preset: no preset {self.preset!r}; {nearest(self.preset, COALITION_PRESETS)}")
        count = len(self.values or (0, 0))
        if count < 2 or count & (count - 1):
            raise ValueError(f"values: {count} of them; choices: 2, 4, 8, ...: one for each coalition")
        return self

    @property
    def agents_and_value(self) -> tuple[int, CoalitionValue]:
        """The number of agents, and the value of a coalition of them."""
        if self.preset is not None:
            return COALITION_PRESETS[self.preset]
        if self.weights is not None and self.quota is not None:
            return len(self.weights), _voting(self.weights, self.quota)
        values = self.values or ()
        return len(values).bit_length() - 1, lambda coalition: values[sum(1 << agent for agent in coalition)]

    def build(self) -> Coalition:
        return Coalition(self)


class Coalition(SimultaneousGame):
    """A game after Shapley: all choose `in` or `out` at once; each is paid the value of the coalition that is in."""

    name = "coalition"

    def __init__(self, config: CoalitionConfig) -> None:
        count, self.value = config.agents_and_value
        super().__init__(config.illegal, [(IN, OUT)] * count, min(config.values or (0.0,)))

    def payoff(self, joint: tuple[str, ...]) -> float:
        return self.value(frozenset(agent for agent, move in enumerate(joint) if move == IN))
