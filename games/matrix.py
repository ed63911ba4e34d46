"""One-shot matrix games of a team: the cell of the joint move is paid to everybody."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import numpy as np
from pydantic import field_validator

from games.base import TextGameConfig
from games.simultaneous import Simultaneous, named
from marl.config import nearest
from marl.protocols import Start

PRESETS: dict[str, list[Any]] = {
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


def _array(cells: Any) -> np.ndarray:
    return np.array(cells, dtype=np.float64)


class MatrixConfig(TextGameConfig):
    """A matrix game of a team. An illegal move ends it at the cost of its worst cell, and of 1 at the least."""

    kind: str = "matrix"
    table: str | list[Any]
    """climbing, qtran, penalty, qmix_2b, matching, additive, and, or; or nested lists of numbers, one level for each
    agent: `table[i][j]` is what the i-th move of `agent_0` and the j-th of `agent_1` pay. Moves are a, b, c, ..."""

    @field_validator("table")
    @classmethod
    def _rectangular(cls, table: str | list[Any]) -> str | list[Any]:
        if isinstance(table, str):
            if table not in PRESETS:
                raise ValueError(f"table: no preset {table!r}; {nearest(table, PRESETS)}")
            return table
        try:
            cells = _array(table)
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
        """One dimension for each agent, in seat order."""
        return _array(PRESETS[self.table] if isinstance(self.table, str) else self.table)

    def build(self) -> Matrix:
        return Matrix(self)

    def starts(self) -> tuple[Start, ...]:
        return (Start(1.0, {}),)


class Matrix(Simultaneous):
    """All move at once; nobody sees the table."""

    name = "matrix"

    def __init__(self, config: MatrixConfig) -> None:
        self.cells = config.cells
        menus = {a: tuple(ascii_lowercase[:n]) for a, n in zip(named(self.cells.ndim), self.cells.shape, strict=True)}
        super().__init__(tuple(menus), config.illegal, menus)
        if config.illegal.penalty is None:
            self.cost = max(self.foul, -float(self.cells.min()))

    def settle(self, joint: tuple[str, ...]) -> float:
        return float(self.cells[tuple(map(ascii_lowercase.index, joint))])
