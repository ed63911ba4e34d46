"""Connect four on a board of any size up to nine by nine; `x` moves first.

A position is a string of columns from left to right, divided by `/`, each from the bottom up: `x`, `o`, `.` for empty.
Columns have letters and rows numbers, as in Allis's thesis (1988): `d1` is the lowest cell of the fourth column.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from games.connect_four_board import COLUMNS, Board, BoardState
from games.connect_four_players import AlphaBeta
from marl.config import cut
from marl.protocols import Drawing, EngineConfig

AGENTS = ("player_0", "player_1")
MARKS = "xo"


class ConnectFourConfig(TextGameConfig):
    """Connect four. A win is worth 1, a draw 0, a loss -1, an illegal move -1.5 unless `illegal.penalty` says so."""

    kind: str = "connect_four"
    rows: int = Field(default=6, ge=4, le=9)
    """Number of rows."""
    columns: int = Field(default=7, ge=4, le=9)
    """Number of columns."""
    openings: float = Field(default=0.0, ge=0, le=1)
    """Share of games that start after random moves."""
    opening_moves: int = Field(default=8, ge=1, le=81)
    """Largest number of random moves; all numbers from 1 to it are equally likely. No random move ends the game."""

    @cached_property
    def board(self) -> Board:
        """The board's rules."""
        return Board.of_size(self.rows, self.columns)

    def build(self) -> ConnectFour:
        return ConnectFour(self)

    def perfect_information(self) -> bool:
        """Return True: both players see the whole board."""
        return True

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"alpha_beta": AlphaBeta(), "alpha_beta_2": AlphaBeta(depth=2)}

    def drawing(self, state: str) -> Drawing:
        """Return the board, the top row first."""
        columns = state.split("/")
        rows = [tuple("" if mark == "." else mark for mark in row) for row in zip(*columns, strict=False)]
        mover = MARKS[state.count("x") > state.count("o")]
        return Drawing("grid", tuple(reversed(rows)), f"columns {' '.join(COLUMNS[: len(columns)])}; {mover} to move")


class ConnectFour(TextGame):
    """`player_0` is x, `player_1` is o. Zero-sum."""

    name = "connect_four"
    zero_sum = True
    foul = 1.5  # more than a loss, so that a lost position is no reason to break the rules
    choices = ("position",)

    def __init__(self, config: ConnectFourConfig) -> None:
        self.config = config
        letters = COLUMNS[: config.columns]
        self.rules = (
            f"This is connect four on {config.columns} columns, {', '.join(letters)}, and {config.rows} rows. The "
            "players take turns to drop a disc into a column, where it falls to the lowest empty cell. Who first has "
            "four discs in a row, upright, level or diagonal, wins; if the board is full before, it is a draw. The "
            "board is shown from your side, row by row, the top row first: `xd1` is the cell of column d in row 1, the "
            "lowest, with your disc, `od1` has a disc of your opponent, and `d1` is empty. Your move is the letter of "
            "a column that is not full."
        )
        super().__init__(AGENTS, config.illegal, tuple(letters))

    @property
    def board(self) -> Board:
        """Return the board's rules, which all copies of the game share."""
        return self.config.board

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.position = self._read_position(options["position"]) if "position" in options else self._opening(rng)
        self.start = self.position
        return AGENTS[self.position.mover]

    def start_key(self) -> str:
        return self.board.text(self.start)

    def legal(self, agent: str) -> tuple[str, ...]:
        return self.board.open_columns(self.position)

    def describe(self, agent: str) -> str:
        """Return a line for each row, from the agent's side: `xd1` is its own disc, `od1` the opponent's, `d1` empty.

        The words tell the cells apart wherever they stand, which a small model learns more easily than a picture.
        """
        side = AGENTS.index(agent)
        sign = {".": "", MARKS[side]: "x", MARKS[1 - side]: "o"}
        columns = self.board.text(self.position).split("/")
        lines = [
            " ".join(f"{sign[column[row]]}{letter}{row + 1}" for letter, column in zip(COLUMNS, columns, strict=False))
            for row in reversed(range(self.board.rows))
        ]
        return "\n".join([*lines, "you x"])

    def state_of(self, agent: str) -> str:
        return self.board.text(self.position)

    def move(self, action: str) -> str | Mapping[str, float]:
        player = self.agent_selection
        other = AGENTS[player == AGENTS[0]]
        self.position = self.board.drop(self.position, COLUMNS.index(action))
        if self.board.won(self.position):
            return {player: 1.0, other: -1.0}
        return dict.fromkeys(AGENTS, 0.0) if self.board.full(self.position) else other

    def _read_position(self, text: Any) -> BoardState:
        position = self.board.read(text) if isinstance(text, str) else None
        if position is None or self.board.over(position):
            raise ValueError(
                f"connect_four: option position: {cut(repr(text))} is no position in play; choices: "
                f"{self.board.columns} columns of {self.board.rows} cells (x, o or ., from the bottom up) divided by "
                "/, with as many x as o or one more, nothing above an empty cell, and not finished"
            )
        return position

    def _opening(self, rng: random.Random) -> BoardState:
        position = self.board.empty
        if not self.config.openings or rng.random() >= self.config.openings:
            return position
        for _ in range(rng.randint(1, self.config.opening_moves)):
            columns = map(COLUMNS.index, self.board.open_columns(position))
            successors = [
                after for column in columns if not self.board.over(after := self.board.drop(position, column))
            ]
            if not successors:
                break
            position = rng.choice(successors)
        return position
