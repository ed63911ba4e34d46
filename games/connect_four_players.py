"""Alpha-beta search for connect four: exact to a stated depth, and to the end on small boards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pydantic import Field

from games.connect_four_board import COLUMNS, Board, BoardState
from marl.engines.scripted import ScriptedConfig

WIN = 1000
"""A win with the n-th disc of the game is worth `WIN` - n, so that the shortest way is taken."""


class AlphaBeta(ScriptedConfig):
    """Player of connect four that looks `depth` moves ahead: plays the best of them, with equal probability if several.

    Positions at that depth are compared by their discs: a disc counts as many as there are lines of four through it.
    """

    kind: str = "connect_four_alpha_beta"
    depth: int | None = Field(default=6, ge=1)
    """Number of moves, of both players, that are looked ahead. None: to the end of the game, which is feasible for up
    to about 25 cells, and late in a game on larger boards."""

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        best = best_columns(state, self.depth)
        return {move: 1 / len(best) if move in best else 0.0 for move in moves}


@lru_cache(maxsize=100_000)
def best_columns(state: str, depth: int | None) -> tuple[str, ...]:
    """Return the letters of the columns of greatest value `depth` moves ahead, in a position that is not finished."""
    values = column_values(state, depth)
    return tuple(column for column, value in values.items() if value == max(values.values()))


def column_values(state: str, depth: int | None) -> dict[str, int]:
    """Return column -> the value of dropping a disc there; those below the best one are upper bounds.

    A value beyond `WIN` / 2 or -`WIN` / 2 is that of a forced win or loss; the others are estimates.

    Raises:
        ValueError: if `state` is no position.
    """
    columns = state.split("/")
    board = Board.of_size(len(columns[0]), len(columns))
    position = board.read(state)
    if position is None:
        raise ValueError(f"connect_four_alpha_beta: {state!r} is no position of connect four")
    search, best, values = Search(board), -WIN, {}
    for column in board.central_first:
        if COLUMNS[column] in board.open_columns(position):
            after = board.drop(position, column)
            # The window lets in ties with the best value so far, and nothing worse.
            value = -search.value(after, (depth or board.cells) - 1, -WIN, 1 - best)
            best, values[COLUMNS[column]] = max(best, value), value
    return dict(sorted(values.items()))


class Search:
    """Values of positions by negamax with alpha-beta pruning and a table of positions."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.table: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(mover's discs, all discs, depth) -> bounds of the value."""

    def value(self, position: BoardState, depth: int, alpha: int, beta: int) -> int:
        """Return the value to the mover, `depth` moves ahead: exact between `alpha` and `beta`, else a bound."""
        board, (mine, discs, moves) = self.board, position
        if board.won(position):
            return moves - WIN
        depth = min(depth, board.cells - moves)
        if not depth:
            return 0 if moves == board.cells else self._estimate(mine, discs)
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
        # Whoever looks two moves ahead must answer a threat.
        answers = open_cells & board.threats(mine ^ discs, discs) if depth > 1 else 0
        candidates, best = answers or open_cells, -WIN
        for column in board.central_first:
            if cell := candidates & board.column[column]:
                after = BoardState(mine ^ discs, discs | cell, moves + 1)
                best = max(best, -self.value(after, depth - 1, -beta, -max(alpha, best)))
                if best >= beta:
                    break
        return best

    def _estimate(self, mine: int, discs: int) -> int:
        """Return the number of lines through the cells of the mover's discs, less that of the opponent's."""
        other = mine ^ discs
        return sum([(mine & cells).bit_count() - (other & cells).bit_count() for cells in self.board.crossed])
