"""Tic-tac-toe. A board is nine characters, row by row: `x`, `o` or `.`; `x` moves first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from marl.engines.scripted import ScriptedConfig
from marl.protocols import Drawing, EngineConfig

AGENTS = ("player_0", "player_1")
MARKS = "xo"
EMPTY = "." * 9
CELLS = tuple("123456789")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@cache
def legal_cells(board: str) -> tuple[str, ...]:
    """Return the empty cells, `1` to `9`."""
    return tuple(cell for cell, mark in zip(CELLS, board, strict=True) if mark == ".")


def mover(board: str) -> int:
    """Return the player to move: 0 for x, 1 for o."""
    return board.count("x") - board.count("o")


def place(board: str, cell: str) -> str:
    """Return the board after the mover has marked `cell`."""
    index = int(cell) - 1
    return board[:index] + MARKS[mover(board)] + board[index + 1 :]


def won(board: str) -> bool:
    """Return True if there are three in a row. Only the last to move can have them."""
    return any(board[a] != "." and board[a] == board[b] == board[c] for a, b, c in LINES)


@cache
def value(board: str) -> int:
    """Return the value for the mover under perfect play: 1, 0 or -1 (memoised negamax)."""
    if won(board):
        return -1
    return max((-value(place(board, cell)) for cell in legal_cells(board)), default=0)


@cache
def best_moves(board: str) -> tuple[str, ...]:
    """Return the moves that keep the mover's value."""
    return tuple(cell for cell in legal_cells(board) if -value(place(board, cell)) == value(board))


def over(board: str) -> bool:
    """Return True if the game has ended."""
    return "." not in board or won(board)


@cache
def unfinished() -> tuple[str, ...]:
    """Return the 4,520 unfinished boards, in order of discovery."""
    boards = {EMPTY: None}
    frontier = [EMPTY]
    while frontier:
        successors = dict.fromkeys(place(board, cell) for board in frontier for cell in legal_cells(board))
        frontier = [board for board in successors if not over(board)]
        boards.update(dict.fromkeys(frontier))
    return tuple(boards)


class Minimax(ScriptedConfig):
    """Perfect player of tic-tac-toe: plays the moves that keep the value of the board, with equal probability."""

    kind: str = "tic_tac_toe_minimax"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        best = best_moves(state)
        return {move: 1 / len(best) if move in best else 0.0 for move in moves}


class TicTacToeConfig(TextGameConfig):
    """Tic-tac-toe. A win is worth 1, a draw 0, a loss -1, an illegal move -1.5 unless `illegal.penalty` says so."""

    kind: str = "tic_tac_toe"
    openings: float = Field(default=0.0, ge=0, le=1)
    """Share of games that start after random moves."""
    opening_moves: int = Field(default=4, ge=1, le=8)
    """Largest number of random moves; all numbers from 1 to it are equally likely. No random move ends the game."""

    def perfect_information(self) -> bool:
        return True

    def build(self) -> TicTacToe:
        return TicTacToe(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"minimax": Minimax()}

    def optimal(self, state: str) -> tuple[str, ...]:
        return best_moves(state) if value(state) >= 0 else ()

    def drawing(self, state: str) -> Drawing:
        cells = tuple("" if mark == "." else mark for mark in state)
        return Drawing("grid", (cells[:3], cells[3:6], cells[6:]), f"{MARKS[mover(state)]} to move")

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        return tuple(({"board": board}, ()) for board in unfinished())


class TicTacToe(TextGame):
    """`player_0` is x, `player_1` is o. Zero-sum."""

    name = "tic_tac_toe"
    zero_sum = True
    foul = 1.5  # more than a loss, so that a lost board is no reason to break the rules
    choices = ("board",)
    rules = (
        "This is tic-tac-toe. The cells of the board are numbered 1 to 9, row by row. The players take turns to mark "
        "an empty cell, and who first has three cells in a row, a column or a diagonal wins; if all cells are marked "
        "before, it is a draw. The board is shown from your side, as nine words: `x5` is cell 5 with your mark, `o5` "
        "is cell 5 with the mark of your opponent, and `5` is cell 5 if it is empty. Your move is the number of an "
        "empty cell."
    )

    def __init__(self, config: TicTacToeConfig) -> None:
        self.openings, self.opening_moves = config.openings, config.opening_moves
        super().__init__(AGENTS, config.illegal, CELLS)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.board = self.start = self._check_board(options["board"]) if "board" in options else self._opening(rng)
        return AGENTS[mover(self.board)]

    def start_key(self) -> str:
        return f"{self.start} {MARKS[mover(self.start)]}"

    def legal(self, agent: str) -> tuple[str, ...]:
        return legal_cells(self.board)

    def describe(self, agent: str) -> str:
        """Return each cell as a word, from the agent's side: `x5` is its own cell, `o5` the opponent's, `5` empty.

        This canonical form (AlphaZero, arXiv 1712.01815) halves the number of positions to learn.
        """
        mine = MARKS[agent == AGENTS[1]]
        marks = ("" if mark == "." else "x" if mark == mine else "o" for mark in self.board)
        return " ".join(f"{mark}{cell}" for mark, cell in zip(marks, CELLS, strict=True)) + " . you x"

    def state_of(self, agent: str) -> str:
        return self.board

    def move(self, action: str) -> str | Mapping[str, float]:
        player = self.agent_selection
        other = AGENTS[player == AGENTS[0]]
        self.board = place(self.board, action)
        if won(self.board):
            return {player: 1.0, other: -1.0}
        return other if "." in self.board else dict.fromkeys(AGENTS, 0.0)

    def _check_board(self, board: Any) -> str:
        marks = isinstance(board, str) and len(board) == 9 and set(board) <= set("xo.")
        if not marks or mover(board) not in (0, 1) or over(board):
            raise ValueError(
                f"tic_tac_toe: option board: {board!r} is no board in play; choices: nine of x, o and ., "
                "row by row, with as many x as o or one more, and not finished"
            )
        return board

    def _opening(self, rng: random.Random) -> str:
        board = EMPTY
        if not self.openings or rng.random() >= self.openings:
            return board
        for _ in range(rng.randint(1, self.opening_moves)):
            successors = [after for cell in legal_cells(board) if not over(after := place(board, cell))]
            if not successors:
                break
            board = rng.choice(successors)
        return board
