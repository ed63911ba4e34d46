"""Tic-tac-toe. A board is nine characters, row by row: `x`, `o` or `.`; `x` moves first."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pydantic import Field

from marl.engines.scripted import ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame
from marl.games.two_player import (
    AGENTS,
    OPPONENT_OF,
    PerfectInformationConfig,
    position_after_random_opening,
    uniform_over_best_moves,
)
from marl.protocols import EngineConfig, EvaluationPosition, StateRendering

MARKS = "xo"
EMPTY = "." * 9
CELLS = tuple("123456789")
"""Names of the cells, row by row."""
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@cache
def legal_cells(board: str) -> tuple[str, ...]:
    """Return the empty cells of `board`, as names `1` to `9`."""
    return tuple(cell for cell, mark in zip(CELLS, board, strict=True) if mark == ".")


def player_to_move(board: str) -> int:
    """Return the index of the player to move: 0 for x, 1 for o."""
    return board.count("x") - board.count("o")


def put_mark(board: str, cell: str) -> str:
    """Return the board after the player to move has marked `cell`."""
    index = int(cell) - 1
    return board[:index] + MARKS[player_to_move(board)] + board[index + 1 :]


@cache
def has_three_in_a_row(board: str) -> bool:
    """Return True if a player has three in a row, which only the last player to move can have."""
    return any(board[a] != "." and board[a] == board[b] == board[c] for a, b, c in LINES)


@cache
def minimax_value(board: str) -> int:
    """Return the game's return to the player to move under perfect play: 1, 0 or -1 (memoised negamax)."""
    if has_three_in_a_row(board):
        return -1
    return max((-minimax_value(put_mark(board, cell)) for cell in legal_cells(board)), default=0)


@cache
def best_moves(board: str) -> tuple[str, ...]:
    """Return the optimal moves of the player to move: each reaches the minimax value of `board`."""
    return tuple(cell for cell in legal_cells(board) if -minimax_value(put_mark(board, cell)) == minimax_value(board))


def is_over(board: str) -> bool:
    """Return True if the game has ended on `board`: by three in a row, or because `board` is full."""
    return "." not in board or has_three_in_a_row(board)


@cache
def unfinished_boards() -> tuple[str, ...]:
    """Return the 4,520 unfinished boards, in the order in which breadth-first search finds them."""
    boards = {EMPTY: None}
    frontier = [EMPTY]
    while frontier:
        discovered: dict[str, None] = {}
        for board in frontier:
            discovered |= dict.fromkeys(_unfinished_successors(board))
        # A dict keeps the order of discovery, on which the order of the exported positions depends.
        frontier = list(discovered)
        boards.update(discovered)
    return tuple(boards)


def _unfinished_successors(board: str) -> list[str]:
    """Return the boards after one more move that does not end the game."""
    successors = [put_mark(board, cell) for cell in legal_cells(board)]
    return [successor for successor in successors if not is_over(successor)]


class TicTacToeMinimax(ScriptedConfig):
    """Perfect player of tic-tac-toe, uniform over the optimal moves."""

    kind: str = "tic_tac_toe_minimax"

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return uniform_over_best_moves(best_moves(state), moves)


class TicTacToeConfig(PerfectInformationConfig):
    """Tic-tac-toe. A win is worth 1, a draw 0, a loss -1 and, by default, an illegal move -1.5."""

    kind: str = "tic_tac_toe"
    openings: float = Field(default=0.0, ge=0, le=1)
    """Probability that a game starts with random moves instead of the empty board."""
    opening_moves: int = Field(default=4, ge=1, le=8)
    """Maximum number of random moves at the start of a game (uniform from 1 to this). No random move ends the game."""

    def build(self) -> TicTacToe:
        return TicTacToe(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"minimax": TicTacToeMinimax()}

    def optimal_moves(self, state: str) -> tuple[str, ...]:
        return best_moves(state) if minimax_value(state) >= 0 else ()

    def render_state(self, state: str) -> StateRendering:
        cells = tuple("" if mark == "." else mark for mark in state)
        return StateRendering("grid", (cells[:3], cells[3:6], cells[6:]), f"{MARKS[player_to_move(state)]} to move")

    def evaluation_positions(self) -> tuple[EvaluationPosition, ...]:
        """Return, for each unfinished board, the reset options that start from it, with () as further moves."""
        return tuple(({"board": board}, ()) for board in unfinished_boards())


class TicTacToe(TextGame):
    """Tic-tac-toe with `player_0` as x and `player_1` as o; x moves first."""

    name = "tic_tac_toe"
    zero_sum = True
    # An illegal move costs more than a loss, so that a lost board is no reason to break the rules.
    default_penalty = 1.5
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

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        if "board" in options:
            board = options["board"]
            well_formed = isinstance(board, str) and len(board) == 9 and set(board) <= set("xo.")
            if not well_formed or player_to_move(board) not in (0, 1) or is_over(board):
                raise ValueError(
                    f"tic_tac_toe: option board: {board!r} is no board in play; choices: nine of x, o and ., "
                    "row by row, with as many x as o or one more, and not finished"
                )
        else:
            board = position_after_random_opening(rng, EMPTY, self.openings, self.opening_moves, _unfinished_successors)
        self.board = self.start = board
        return AGENTS[player_to_move(board)]

    def start_state_key(self) -> str:
        return f"{self.start} {MARKS[player_to_move(self.start)]}"

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return legal_cells(self.board)

    def describe_observation(self, agent: str) -> str:
        """Return one word per cell as `agent` sees it: `x5` is its own cell 5, `o5` the opponent's, `5` empty."""
        # The agent's own mark is always `x` (AlphaZero's canonical form, arXiv 1712.01815): half as many positions.
        side = AGENTS.index(agent)
        sign = {".": "", MARKS[side]: "x", MARKS[1 - side]: "o"}
        words = [f"{sign[mark]}{cell}" for mark, cell in zip(self.board, CELLS, strict=True)]
        return " ".join(words) + " . you x"

    def information_state(self, agent: str) -> str:
        return self.board

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        player = self.agent_selection
        opponent = OPPONENT_OF[player]
        self.board = put_mark(self.board, action)
        if has_three_in_a_row(self.board):
            return {player: 1.0, opponent: -1.0}
        return opponent if "." in self.board else dict.fromkeys(AGENTS, 0.0)

    def random_returns(self, random_number: Callable[[], float]) -> tuple[float, ...]:
        board = self.board
        while not is_over(board):
            cells = legal_cells(board)
            board = put_mark(board, cells[int(random_number() * len(cells))])
        if not has_three_in_a_row(board):
            return 0.0, 0.0
        # Only the last player to move can have three in a row.
        return (-1.0, 1.0) if player_to_move(board) == 0 else (1.0, -1.0)
