"""Alpha-beta search for connect four, to a fixed depth or (on small boards) to the end of the game."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pydantic import Field

from marl.engines.scripted import ScriptedConfig
from marl.games.connect_four_board import COLUMNS, Board, BoardState
from marl.games.two_player import uniform_over

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

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        return uniform_over(best_columns(state, self.depth), moves)


@lru_cache(maxsize=100_000)
def best_columns(state: str, depth: int | None) -> tuple[str, ...]:
    """Return the letters of the best columns in an unfinished position, searched `depth` moves ahead."""
    values = column_values(state, depth)
    highest = max(values.values())
    return tuple(column for column, value in values.items() if value == highest)


def column_values(state: str, depth: int | None) -> dict[str, int]:
    """Return column letter -> value of a disc in this column; values below the best value are upper bounds.

    A value beyond ±`WIN` / 2 means a forced win or loss; other values are estimates.

    Raises:
        ValueError: if `state` is no position.
    """
    columns = state.split("/")
    board = Board.of_size(len(columns[0]), len(columns))
    position = board.read(state)
    if position is None:
        raise ValueError(f"connect_four_alpha_beta: {state!r} is no position of connect four")
    search, best, values = AlphaBetaSearch(board), -WIN, {}
    for column in board.central_first:
        if COLUMNS[column] in board.open_columns(position):
            after = board.drop(position, column)
            # The window admits ties with the best value so far, as all best moves are played; worse moves are cut off.
            value = -search.value(after, (depth or board.cells) - 1, -WIN, 1 - best)
            best, values[COLUMNS[column]] = max(best, value), value
    return dict(sorted(values.items()))


class AlphaBetaSearch:
    """Negamax search with alpha-beta pruning and a transposition table."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.table: dict[tuple[int, int, int], tuple[int, int]] = {}
        """Transposition table: (mover's discs, all discs, depth) -> lower and upper bound of the value."""

    def value(self, position: BoardState, depth: int, alpha: int, beta: int) -> int:
        """Return the value for the player to move, `depth` moves ahead: exact if within (alpha, beta), else a bound."""
        board, (mine, discs, moves) = self.board, position
        if board.won(position):
            return moves - WIN
        depth = min(depth, board.cells - moves)
        if not depth:
            if moves == board.cells:
                return 0
            # Heuristic: lines of four through the mover's discs minus lines through the opponent's.
            theirs = mine ^ discs
            return sum([(mine & cells).bit_count() - (theirs & cells).bit_count() for cells in board.crossed])
        key = (mine, discs, depth)
        low, high = self.table.get(key, (-WIN, WIN))
        alpha, beta = max(alpha, low), min(beta, high)
        if alpha >= beta:
            return low if low >= beta else high
        best = self._best(position, depth, alpha, beta)
        self.table[key] = (best if best > alpha else low, best if best < beta else high)
        return best

    def _best(self, position: BoardState, depth: int, alpha: int, beta: int) -> int:
        board, (mine, discs, moves) = self.board, position
        open_cells = board.lowest_empty(discs)
        if open_cells & board.threats(mine, discs):
            return WIN - moves - 1
        # With at least two moves to go, the opponent would win by any threat left open.
        answers = open_cells & board.threats(mine ^ discs, discs) if depth > 1 else 0
        candidates, best = answers or open_cells, -WIN
        for column in board.central_first:
            if cell := candidates & board.column[column]:
                after = BoardState(mine ^ discs, discs | cell, moves + 1)
                best = max(best, -self.value(after, depth - 1, -beta, -max(alpha, best)))
                if best >= beta:
                    break
        return best
