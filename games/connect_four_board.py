"""Bitboards of connect four: an integer holds one player's discs, and shifts find four in a row.

A cell is bit `column * (rows + 1) + row`, counted from the lower left corner. The bit above each column stays empty, so
no line of four runs from the top of a column into the bottom of the next column (J. Tromp's layout).
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple, Self

COLUMNS = "abcdefghi"
_COLUMN = re.compile(r"[xo]*\.*")
"""Pattern of a column, written from the bottom up, with no disc above an empty cell."""


class BoardState(NamedTuple):
    """Position of connect four as bitboards. A position is immutable, so copies of a game share it."""

    mine: int
    """Bitboard of the discs of the player to move."""
    discs: int
    """Bitboard of the discs of both players."""
    moves: int
    """Number of discs on the board: x is to move if it is even, o if it is odd."""

    def __deepcopy__(self, memo: object) -> BoardState:
        """Return this position itself, since an immutable position needs no copy."""
        return self


class BoardRules:
    """Rules of connect four on a board of `rows` by `columns` cells; a method changes no position."""

    empty = BoardState(0, 0, 0)

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells = rows * columns
        self.height = rows + 1
        """Number of bits per column: the distance between the bits of horizontal neighbours."""
        column = (1 << rows) - 1
        self.floor = tuple(1 << self.height * index for index in range(columns))
        """Bit of the lowest cell of each column, from left to right."""
        self._top = tuple([bit << rows - 1 for bit in self.floor])
        """Bit of the highest cell of each column, from left to right."""
        self.column = tuple(column * bit for bit in self.floor)
        """Bitboard of all cells of each column, from left to right."""
        self.all = sum(self.column)
        self.bottom_row = sum(self.floor)
        self._bits = tuple(floor << row for floor in self.floor for row in range(rows))
        self._steps = (1, self.height, self.height - 1, self.height + 1)
        """Distances between the bits of neighbours: vertical, horizontal, and on the two diagonals."""
        self.columns_from_center = tuple(sorted(range(columns), key=lambda index: abs(2 * index + 1 - columns)))
        """Indices of the columns from the middle outwards, the order in which search finds good moves early."""

    @classmethod
    @cache
    def of_size(cls, rows: int, columns: int) -> Self:
        """Return the cached board of this size."""
        return cls(rows, columns)

    @cached_property
    def cell_bitboards_by_minimum_line_count(self) -> tuple[int, ...]:
        """Bitboards of cells by number of lines of four through them: item n has the cells on at least n + 1 lines."""
        levels: list[int] = []
        counts = dict.fromkeys(self._bits, 0)
        for cell, step in product(self._bits, self._steps):
            line = [cell << distance * step for distance in range(4)]
            # A line of four that leaves the board sets a bit outside of `self.all`.
            if sum(line) & ~self.all:
                continue
            for bit in line:
                if counts[bit] == len(levels):
                    levels.append(0)
                levels[counts[bit]] |= bit
                counts[bit] += 1
        return tuple(levels)

    def open_columns(self, position: BoardState) -> tuple[str, ...]:
        """Return the letters of the columns with an empty cell."""
        return tuple([COLUMNS[index] for index in self.open_column_indices(position)])

    def open_column_indices(self, position: BoardState) -> list[int]:
        """Return the indices of the columns with an empty cell."""
        discs = position.discs
        return [index for index, bit in enumerate(self._top) if not discs & bit]

    def drop_disc(self, position: BoardState, column: int) -> BoardState:
        """Return the position after the player to move has dropped a disc into an open column."""
        # Adding the column's lowest bit carries through the occupied cells, and so sets the lowest empty cell.
        discs = position.discs | (position.discs + self.floor[column])
        return BoardState(position.mine ^ position.discs, discs, position.moves + 1)

    def last_mover_won(self, position: BoardState) -> bool:
        """Return True if the player who moved last has won; the player to move cannot have won."""
        discs = position.mine ^ position.discs
        for step in self._steps:
            pairs = discs & (discs >> step)
            if pairs & (pairs >> 2 * step):
                return True
        return False

    def is_over(self, position: BoardState) -> bool:
        """Return True if the game has ended in `position`."""
        return position.moves == self.cells or self.last_mover_won(position)

    def winning_cell_bitboard(self, own_bitboard: int, all_bitboard: int) -> int:
        """Return the bitboard of the empty cells that would complete four in a row of the discs `own_bitboard`.

        Cells that no disc can reach yet are included.
        """
        upright = (own_bitboard << 1) & (own_bitboard << 2) & (own_bitboard << 3)
        cells = upright
        for step in self._steps[1:]:
            ahead, behind = (
                (own_bitboard << step) & (own_bitboard << 2 * step),
                (own_bitboard >> step) & (own_bitboard >> 2 * step),
            )
            cells |= ahead & (own_bitboard << 3 * step | own_bitboard >> step)
            cells |= behind & (own_bitboard >> 3 * step | own_bitboard << step)
        return cells & self.all & ~all_bitboard

    def format_position(self, position: BoardState) -> str:
        """Return `position` as text: columns from left to right separated by `/`, each from the bottom up."""
        mine, discs = position.mine, position.discs
        mark, other = "ox" if position.moves % 2 else "xo"
        cells = "".join(["." if not discs & bit else mark if mine & bit else other for bit in self._bits])
        return "/".join([cells[start : start + self.rows] for start in range(0, self.cells, self.rows)])

    def parse_position(self, text: str) -> BoardState | None:
        """Return the position that `text` describes, or None if its size, its discs or a gap is impossible."""
        columns = text.split("/")
        filled = all(len(column) == self.rows and _COLUMN.fullmatch(column) for column in columns)
        ahead = text.count("x") - text.count("o")
        if len(columns) != self.columns or not filled or ahead not in (0, 1):
            return None
        discs = {"x": 0, "o": 0, ".": 0}
        for bit, mark in zip(self._bits, "".join(columns), strict=True):
            discs[mark] |= bit
        filled_cells = discs["x"] | discs["o"]
        return BoardState(discs["o" if ahead else "x"], filled_cells, filled_cells.bit_count())
