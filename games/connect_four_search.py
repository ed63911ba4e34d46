"""Alpha-beta search for connect four, to a fixed depth or (on small boards) to the end of the game."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pydantic import Field

from marl.engines.scripted import ScriptedConfig
from marl.games.connect_four_board import COLUMNS, BoardRules, BoardState
from marl.games.two_player import uniform_over_best_moves

WIN = 1000
"""A win with the n-th disc of the game has the value `WIN` - n, so search prefers the shortest win."""


class ConnectFourAlphaBeta(ScriptedConfig):
    """Player of connect four that searches `depth` moves ahead and plays uniformly among the best moves.

    At the search depth, a position is estimated by the lines of four through each player's discs.
    """

    kind: str = "connect_four_alpha_beta"
    depth: int | None = Field(default=6, ge=1)
    """Search depth, in moves of both players, or None to search to the end of the game. None is feasible up to about
    25 cells, and late in a game on larger boards."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return uniform_over_best_moves(best_columns(state, self.depth), moves)


@lru_cache(maxsize=100_000)
def best_columns(board_text: str, depth: int | None) -> tuple[str, ...]:
    """Return the letters of all best columns in the unfinished position `board_text`, searched `depth` moves ahead."""
    values = value_by_column(board_text, depth)
    highest = max(values.values())
    return tuple(column for column, value in values.items() if value == highest)


def value_by_column(board_text: str, depth: int | None) -> dict[str, int]:
    """Return column letter -> value of a disc there to the player to move; all but the best value are upper bounds.

    An absolute value above `WIN` / 2 means a forced win or loss; any other value is an estimate.

    Raises:
        ValueError: if `board_text` is no position.
    """
    columns = board_text.split("/")
    board = BoardRules.of_size(len(columns[0]), len(columns))
    position = board.parse_position(board_text)
    if position is None:
        raise ValueError(f"connect_four_alpha_beta: {board_text!r} is no position of connect four")
    search, best, values = AlphaBetaSearch(board), -WIN, {}
    for column in board.columns_from_center:
        if COLUMNS[column] in board.open_columns(position):
            after = board.drop_disc(position, column)
            # The window's bound `1 - best` admits ties, because the player chooses among all best moves.
            value = -search.search_value(after, (depth or board.cells) - 1, -WIN, 1 - best)
            best, values[COLUMNS[column]] = max(best, value), value
    return dict(sorted(values.items()))


class AlphaBetaSearch:
    """Negamax search with alpha-beta pruning and a transposition table."""

    def __init__(self, board: BoardRules) -> None:
        self.board = board
        self.table: dict[tuple[int, int, int], tuple[int, int]] = {}
        """Transposition table: (mover's discs, all discs, depth) -> lower and upper bound of the value."""

    def search_value(self, position: BoardState, depth: int, alpha: int, beta: int) -> int:
        """Return the value of `position` for the player to move, searched `depth` moves ahead.

        A value within (alpha, beta) is exact; any other value is a bound.
        """
        board, (mine, discs, moves) = self.board, position
        if board.last_mover_won(position):
            return moves - WIN
        depth = min(depth, board.cells - moves)
        if not depth:
            if moves == board.cells:
                return 0
            # The heuristic counts the lines of four through the mover's discs minus those through the opponent's discs.
            theirs = mine ^ discs
            return sum(
                [
                    (mine & cells).bit_count() - (theirs & cells).bit_count()
                    for cells in board.cell_bitboards_by_minimum_line_count
                ]
            )
        key = (mine, discs, depth)
        low, high = self.table.get(key, (-WIN, WIN))
        alpha, beta = max(alpha, low), min(beta, high)
        if alpha >= beta:
            return low if low >= beta else high
        # Adding the bottom row carries through the discs of every column, and so sets each column's lowest empty cell.
        open_cells = (discs + board.bottom_row) & board.all
        if open_cells & board.winning_cell_bitboard(mine, discs):
            best, candidates = WIN - moves - 1, 0
        else:
            # The opponent would next win at any open cell that completes its line of four (if it still has a move).
            answers = open_cells & board.winning_cell_bitboard(mine ^ discs, discs) if depth > 1 else 0
            best, candidates = -WIN, answers or open_cells
        for column in board.columns_from_center:
            if cell := candidates & board.column[column]:
                after = BoardState(mine ^ discs, discs | cell, moves + 1)
                best = max(best, -self.search_value(after, depth - 1, -beta, -max(alpha, best)))
                if best >= beta:
                    break
        self.table[key] = (best if best > alpha else low, best if best < beta else high)
        return best
