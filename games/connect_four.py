"""Connect four on a board of any size up to nine by nine; `x` moves first.

A position is a text of columns from left to right, separated by `/`. Each column is written from the bottom up with
`x`, `o` and `.` (empty). Columns have letters and rows numbers (Allis, 1988): `d1` is the lowest cell of the
fourth column.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from pydantic import Field

from marl.core.config import shorten
from marl.games.base import FinalRewards, NextAgent, TextGame
from marl.games.connect_four_board import COLUMNS, BoardRules, BoardState
from marl.games.connect_four_search import ConnectFourAlphaBeta
from marl.games.two_player import AGENTS, OPPONENT_OF, PerfectInformationConfig, position_after_random_opening
from marl.protocols import EngineConfig, StateRendering

MARKS = "xo"


class ConnectFourConfig(PerfectInformationConfig):
    """Connect four. A win is worth 1, a draw 0, a loss -1 and, by default, an illegal move -1.5."""

    kind: str = "connect_four"
    rows: int = Field(default=6, ge=4, le=9)
    """Number of rows of the board."""
    columns: int = Field(default=7, ge=4, le=9)
    """Number of columns of the board."""
    openings: float = Field(default=0.0, ge=0, le=1)
    """Probability that a game starts with random moves instead of the empty board."""
    opening_moves: int = Field(default=8, ge=1, le=81)
    """Maximum number of random moves at the start of a game (uniform from 1 to this). No random move ends the game."""

    @cached_property
    def board(self) -> BoardRules:
        """Board of this size with its rules, shared by all games of this configuration."""
        return BoardRules.of_size(self.rows, self.columns)

    def build(self) -> ConnectFour:
        return ConnectFour(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"alpha_beta": ConnectFourAlphaBeta(), "alpha_beta_2": ConnectFourAlphaBeta(depth=2)}

    def render_state(self, state: str) -> StateRendering:
        """Return the board as a grid of cells, with the top row first."""
        columns = state.replace(".", " ").split("/")
        rows: list[tuple[str, ...]] = []
        for row in zip(*columns, strict=False):
            rows.insert(0, tuple(map(str.strip, row)))
        mover = MARKS[state.count("x") > state.count("o")]
        return StateRendering("grid", tuple(rows), f"columns {' '.join(COLUMNS[: len(columns)])}; {mover} to move")


class ConnectFour(TextGame):
    """Connect four with `player_0` as x and `player_1` as o; x moves first."""

    name = "connect_four"
    zero_sum = True
    # An illegal move costs more than a loss, so that a lost position is no reason to break the rules.
    default_penalty = 1.5
    reset_options = ("position",)

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

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        board, config = self.config.board, self.config
        if "position" in options:
            text = options["position"]
            position = board.parse_position(text) if isinstance(text, str) else None
            if position is None or board.is_over(position):
                raise ValueError(
                    f"connect_four: option position: {shorten(repr(text))} is no position in play; choices: "
                    f"{board.columns} columns of {board.rows} cells (x, o or ., from the bottom up) divided by "
                    "/, with as many x as o or one more, nothing above an empty cell, and not finished"
                )
        else:
            position = position_after_random_opening(
                rng, board.empty, config.openings, config.opening_moves, self._unfinished_successors
            )
        self.position = self.start = position
        return AGENTS[position.moves % 2]

    def start_state_key(self) -> str:
        return self.config.board.format_position(self.start)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.config.board.open_columns(self.position)

    def describe_observation(self, agent: str) -> str:
        """Return one line per row as `agent` sees it: `xd1` is its own disc, `od1` the opponent's, `d1` empty."""
        # Every word names its cell, which a small model learns more easily than a picture of the board.
        side = AGENTS.index(agent)
        sign = {".": "", MARKS[side]: "x", MARKS[1 - side]: "o"}
        columns = self.config.board.format_position(self.position).split("/")
        lines: list[str] = []
        for row in reversed(range(self.config.board.rows)):
            cells = [f"{sign[column[row]]}{letter}{row + 1}" for letter, column in zip(COLUMNS, columns, strict=False)]
            lines.append(" ".join(cells))
        return "\n".join([*lines, "you x"])

    def information_state(self, agent: str) -> str:
        return self.config.board.format_position(self.position)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        player = self.agent_selection
        opponent = OPPONENT_OF[player]
        board = self.config.board
        self.position = board.drop_disc(self.position, COLUMNS.index(action))
        if board.last_mover_won(self.position):
            return {player: 1.0, opponent: -1.0}
        return dict.fromkeys(AGENTS, 0.0) if self.position.moves == board.cells else opponent

    def random_returns(self, random_number: Callable[[], float]) -> tuple[float, ...]:
        board, position = self.config.board, self.position
        while not board.is_over(position):
            columns = board.open_column_indices(position)
            position = board.drop_disc(position, columns[int(random_number() * len(columns))])
        if not board.last_mover_won(position):
            return 0.0, 0.0
        return (1.0, -1.0) if position.moves % 2 else (-1.0, 1.0)

    def _unfinished_successors(self, position: BoardState) -> list[BoardState]:
        """Return the positions after one more move that does not end the game."""
        board = self.config.board
        columns = map(COLUMNS.index, board.open_columns(position))
        successors = [board.drop_disc(position, column) for column in columns]
        return [successor for successor in successors if not board.is_over(successor)]
