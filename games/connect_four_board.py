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
"""Pattern of a column from the bottom up, without a disc above an empty cell."""


class BoardState(NamedTuple):
    """Discs on a board; immutable, so copies of a game share it."""

    mine: int
    """Bitboard of the discs of the player to move."""
    discs: int
    """Bitboard of the discs of both players."""
    moves: int
    """Number of discs on the board."""

    @property
    def mover(self) -> int:
        """Index of the player to move: 0 for x, 1 for o."""
        return self.moves & 1

    def __deepcopy__(self, memo: object) -> BoardState:
        """Return the object itself, as nothing in it can change."""
        return self


class Board:
    """Rules of connect four on `rows` by `columns` cells; methods are pure functions of a position."""

    empty = BoardState(0, 0, 0)

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells = rows * columns
        self.height = rows + 1
        """Distance between the bits of horizontal neighbours."""
        column = (1 << rows) - 1
        self.floor = tuple(1 << self.height * index for index in range(columns))
        """Bit of the lowest cell of each column."""
        self.column = tuple(column * bit for bit in self.floor)
        """Bitboard of each column."""
        self.all = sum(self.column)
        self._bottom = sum(self.floor)
        self._tops = tuple(bit << rows - 1 for bit in self.floor)
        self._bits = tuple(floor << row for floor in self.floor for row in range(rows))
        self._steps = (1, self.height, self.height - 1, self.height + 1)
        """Distances between the bits of neighbours: vertical, horizontal and on the two diagonals."""

    @classmethod
    @cache
    def of_size(cls, rows: int, columns: int) -> Self:
        """Return the cached board of this size."""
        return cls(rows, columns)

    @cached_property
    def central_first(self) -> tuple[int, ...]:
        """Columns from the middle outwards: more lines of four cross the middle, so search finds good moves early."""
        return tuple(sorted(range(self.columns), key=lambda column: abs(2 * column + 1 - self.columns)))

    @cached_property
    def crossed(self) -> tuple[int, ...]:
        """Item n is the bitboard of the cells on at least n + 1 lines of four, so a cell counts once per line."""
        levels: list[int] = []
        counts = dict.fromkeys(self._bits, 0)
        for cell, step in product(self._bits, self._steps):
            line = [cell << distance * step for distance in range(4)]
            # A line that leaves the board hits a bit above a column.
            if sum(line) & ~self.all:
                continue
            for bit in line:
                if counts[bit] == len(levels):
                    levels.append(0)
                levels[counts[bit]] |= bit
                counts[bit] += 1
        return tuple(levels)

    def open_columns(self, position: BoardState) -> tuple[str, ...]:
        """Return the letters of the columns that are not full."""
        discs = position.discs
        return tuple([COLUMNS[index] for index, top in enumerate(self._tops) if not discs & top])

    def lowest_empty(self, discs: int) -> int:
        """Return the bitboard of the lowest empty cell of every open column."""
        return (discs + self._bottom) & self.all

    def drop(self, position: BoardState, column: int) -> BoardState:
        """Return the position after the player to move has dropped a disc into an open column."""
        # The addition carries through the discs of the column to its lowest empty cell.
        discs = position.discs | (position.discs + self.floor[column])
        return BoardState(position.mine ^ position.discs, discs, position.moves + 1)

    def won(self, position: BoardState) -> bool:
        """Return True if the player who moved last has four in a row; the other player cannot."""
        return self.has_four(position.mine ^ position.discs)

    def has_four(self, discs: int) -> bool:
        """Return True if four cells of the bitboard `discs` are in a row."""
        for step in self._steps:
            pairs = discs & (discs >> step)
            if pairs & (pairs >> 2 * step):
                return True
        return False

    def full(self, position: BoardState) -> bool:
        """Return True if every cell holds a disc."""
        return position.moves == self.cells

    def over(self, position: BoardState) -> bool:
        """Return True if the game has ended."""
        return self.full(position) or self.won(position)

    def threats(self, mine: int, discs: int) -> int:
        """Return the bitboard of empty cells that complete four in a row of `mine`, including unreachable cells."""
        upright = (mine << 1) & (mine << 2) & (mine << 3)
        cells = upright
        for step in self._steps[1:]:
            ahead, behind = (mine << step) & (mine << 2 * step), (mine >> step) & (mine >> 2 * step)
            cells |= ahead & (mine << 3 * step | mine >> step)
            cells |= behind & (mine >> 3 * step | mine << step)
        return cells & self.all & ~discs

    def text(self, position: BoardState) -> str:
        """Return the position as text: columns from left to right separated by `/`, each from the bottom up."""
        mine, discs = position.mine, position.discs
        mark, other = "xo" if not position.mover else "ox"
        cells = "".join(["." if not discs & bit else mark if mine & bit else other for bit in self._bits])
        return "/".join([cells[start : start + self.rows] for start in range(0, self.cells, self.rows)])

    def read(self, text: str) -> BoardState | None:
        """Return the position written as `text`, or None for a wrong size, wrong disc counts or gaps below a disc."""
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
