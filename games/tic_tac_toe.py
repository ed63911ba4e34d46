"""Tic-tac-toe. A board is nine characters, row by row: `x`, `o` or `.`; `x` moves first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import Field

from marl.engines.scripted import ScriptedConfig
from marl.games.base import TextGame, TextGameConfig
from marl.games.two_player import AGENTS, opponent_of, random_opening, uniform_over
from marl.protocols import EngineConfig, StateRendering

MARKS = "xo"
EMPTY = "." * 9
CELLS = tuple("123456789")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@cache
def legal_cells(board: str) -> tuple[str, ...]:
    """Return the empty cells, `1` to `9`."""
    return tuple(cell for cell, mark in zip(CELLS, board, strict=True) if mark == ".")


def mover(board: str) -> int:
    """Return the index of the player to move: 0 for x, 1 for o."""
    return board.count("x") - board.count("o")


def put_mark(board: str, cell: str) -> str:
    """Return the board after the player to move has marked `cell`."""
    index = int(cell) - 1
    return board[:index] + MARKS[mover(board)] + board[index + 1 :]


def won(board: str) -> bool:
    """Return True if a player has three in a row; only the last player to move can."""
    return any(board[a] != "." and board[a] == board[b] == board[c] for a, b, c in LINES)


@cache
def value(board: str) -> int:
    """Return the value for the player to move under perfect play: 1, 0 or -1 (memoised negamax)."""
    if won(board):
        return -1
    return max((-value(put_mark(board, cell)) for cell in legal_cells(board)), default=0)


@cache
def best_moves(board: str) -> tuple[str, ...]:
    """Return the optimal moves: moves that preserve the value of the board for the player to move."""
    return tuple(cell for cell in legal_cells(board) if -value(put_mark(board, cell)) == value(board))


def over(board: str) -> bool:
    """Return True if the game has ended on this board."""
    return "." not in board or won(board)


@cache
def unfinished() -> tuple[str, ...]:
    """Return the 4,520 unfinished boards, in order of discovery."""
    boards = {EMPTY: None}
    frontier = [EMPTY]
    while frontier:
        # Breadth-first; a dict keeps the order of discovery, on which the order of exported positions depends.
        discovered: dict[str, None] = {}
        for board in frontier:
            for successor in _unfinished_successors(board):
                discovered[successor] = None
        frontier = list(discovered)
        boards.update(discovered)
    return tuple(boards)


def _unfinished_successors(board: str) -> list[str]:
    """Return the boards after one more move that does not end the game."""
    successors = [put_mark(board, cell) for cell in legal_cells(board)]
    return [successor for successor in successors if not over(successor)]


class TicTacToeMinimax(ScriptedConfig):
    """Perfect player of tic-tac-toe, uniform over the optimal moves."""

    kind: str = "tic_tac_toe_minimax"

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return uniform_over(best_moves(state), moves)


class TicTacToeConfig(TextGameConfig):
    """Tic-tac-toe. A win is worth 1, a draw 0, a loss -1 and, by default, an illegal move -1.5."""

    kind: str = "tic_tac_toe"
    openings: float = Field(default=0.0, ge=0, le=1)
    """Probability of a game to start with random moves instead of the empty board."""
    opening_moves: int = Field(default=4, ge=1, le=8)
    """Maximum number of random moves; the number is uniform from 1 to this maximum. No random move ends the game."""

    def perfect_information(self) -> bool:
        return True

    def build(self) -> TicTacToe:
        return TicTacToe(self)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"minimax": TicTacToeMinimax()}

    def optimal(self, state: str) -> tuple[str, ...]:
        return best_moves(state) if value(state) >= 0 else ()

    def render_state(self, state: str) -> StateRendering:
        cells = tuple("" if mark == "." else mark for mark in state)
        return StateRendering("grid", (cells[:3], cells[3:6], cells[6:]), f"{MARKS[mover(state)]} to move")

    def positions(self) -> tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]:
        return tuple(({"board": board}, ()) for board in unfinished())


class TicTacToe(TextGame):
    """Tic-tac-toe with `player_0` as x and `player_1` as o; x moves first."""

    name = "tic_tac_toe"
    zero_sum = True
    default_penalty = 1.5  # more than a loss, so that a lost board is no reason to break the rules
    reset_options = ("board",)
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
        if "board" in options:
            board = options["board"]
            well_formed = isinstance(board, str) and len(board) == 9 and set(board) <= set("xo.")
            if not well_formed or mover(board) not in (0, 1) or over(board):
                raise ValueError(
                    f"tic_tac_toe: option board: {board!r} is no board in play; choices: nine of x, o and ., "
                    "row by row, with as many x as o or one more, and not finished"
                )
        else:
            board = random_opening(rng, EMPTY, self.openings, self.opening_moves, _unfinished_successors)
        self.board = self.start = board
        return AGENTS[mover(board)]

    def start_key(self) -> str:
        return f"{self.start} {MARKS[mover(self.start)]}"

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return legal_cells(self.board)

    def describe(self, agent: str) -> str:
        """Return one word per cell, from the agent's side: `x5` is its own cell, `o5` the opponent's, `5` empty."""
        # This canonical form (AlphaZero, arXiv 1712.01815) halves the number of positions to learn.
        side = AGENTS.index(agent)
        sign = {".": "", MARKS[side]: "x", MARKS[1 - side]: "o"}
        words = [f"{sign[mark]}{cell}" for mark, cell in zip(self.board, CELLS, strict=True)]
        return " ".join(words) + " . you x"

    def information_state(self, agent: str) -> str:
        return self.board

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        player = self.agent_selection
        opponent = opponent_of(player)
        self.board = put_mark(self.board, action)
        if won(self.board):
            return {player: 1.0, opponent: -1.0}
        return opponent if "." in self.board else dict.fromkeys(AGENTS, 0.0)
