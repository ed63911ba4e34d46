"""The board of connect four in bits: 64-bit words hold a side's discs, and shifts find four in a row.

Bit `column * (rows + 1) + row` is a cell, counted from the lower left corner. The bit above each column stays empty, so
that no line runs from one column's top to the next one's bottom (J. Tromp's layout).
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from typing import NamedTuple, Self

COLUMNS = "abcdefghi"
_COLUMN = re.compile(r"[xo]*\.*")
"""A column from the bottom up: no disc lies above an empty cell."""


class BoardState(NamedTuple):
    """Discs on a board; immutable, so that a tree of positions shares what it can."""

    mine: int
    """Discs of the player to move, a bit each."""
    discs: int
    """Discs of both."""
    moves: int
    """Number of discs."""

    @property
    def mover(self) -> int:
        """Return the player to move: 0 for x, 1 for o."""
        return self.moves & 1

    def __deepcopy__(self, memo: object) -> BoardState:
        """Return itself: nothing in it changes."""
        return self


class Board:
    """Rules of connect four on `rows` by `columns` cells, as functions of positions."""

    empty = BoardState(0, 0, 0)

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells = rows * columns
        self.height = rows + 1
        """Distance of a cell's bit from that of its neighbour on the right."""
        column = (1 << rows) - 1
        self.floor = tuple(1 << self.height * index for index in range(columns))
        """Lowest cell of each column."""
        self.column = tuple(column * bit for bit in self.floor)
        """All cells of each column."""
        self.all = sum(self.column)
        self._bottom = sum(self.floor)
        self._tops = tuple(bit << rows - 1 for bit in self.floor)
        self._bits = tuple(floor << row for floor in self.floor for row in range(rows))
        self._steps = (1, self.height, self.height - 1, self.height + 1)
        """Distances of neighbours: upright, level, and on the two diagonals."""

    @classmethod
    @cache
    def of_size(cls, rows: int, columns: int) -> Self:
        """Return the board of a size, the same one each time."""
        return cls(rows, columns)

    @cached_property
    def central_first(self) -> tuple[int, ...]:
        """Columns from the middle outwards: more lines cross the middle, so good moves come early."""
        return tuple(sorted(range(self.columns), key=lambda column: abs(2 * column + 1 - self.columns)))

    @cached_property
    def crossed(self) -> tuple[int, ...]:
        """Cells on at least one line of four, on at least two, and so on. A cell is in as many as there are lines."""
        ends = [(cell, step) for cell in self._bits for step in self._steps]
        lines = [sum(cell << distance * step for distance in range(4)) for cell, step in ends]
        counts = {cell: sum(1 for line in lines if line & cell and not line & ~self.all) for cell in self._bits}
        most = max(counts.values())
        return tuple(sum(cell for cell, count in counts.items() if count >= least) for least in range(1, most + 1))

    def open_columns(self, position: BoardState) -> tuple[str, ...]:
        """Return the letters of the columns that are not full."""
        discs = position.discs
        return tuple([COLUMNS[index] for index, top in enumerate(self._tops) if not discs & top])

    def lowest_empty(self, discs: int) -> int:
        """Return the cells in which a disc can come to lie."""
        return (discs + self._bottom) & self.all

    def drop(self, position: BoardState, column: int) -> BoardState:
        """Return the position after a disc of the mover has fallen into a column that is not full."""
        # The sum carries through the column's discs to its lowest empty cell.
        discs = position.discs | (position.discs + self.floor[column])
        return BoardState(position.mine ^ position.discs, discs, position.moves + 1)

    def won(self, position: BoardState) -> bool:
        """Return True if the player who moved last has four in a row. Nobody else can have them."""
        return self.has_four(position.mine ^ position.discs)

    def has_four(self, discs: int) -> bool:
        """Return True if four of these cells are in a row."""
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
        """Return the empty cells that would complete four in a row of `mine`, also those out of reach."""
        upright = (mine << 1) & (mine << 2) & (mine << 3)
        cells = upright
        for step in self._steps[1:]:
            ahead, behind = (mine << step) & (mine << 2 * step), (mine >> step) & (mine >> 2 * step)
            cells |= ahead & (mine << 3 * step | mine >> step)
            cells |= behind & (mine >> 3 * step | mine << step)
        return cells & self.all & ~discs

    def text(self, position: BoardState) -> str:
        """Return the position as a string: columns divided by `/`, each from the bottom up."""
        mine, discs = position.mine, position.discs
        mark, other = "xo" if not position.mover else "ox"
        cells = "".join(["." if not discs & bit else mark if mine & bit else other for bit in self._bits])
        return "/".join([cells[start : start + self.rows] for start in range(0, self.cells, self.rows)])

    def read(self, text: str) -> BoardState | None:
        """Return the position that a string means; None if it is none: wrong size, numbers of discs, or gaps."""
        columns = text.split("/")
        filled = all(len(column) == self.rows and _COLUMN.fullmatch(column) for column in columns)
        ahead = text.count("x") - text.count("o")
        if len(columns) != self.columns or not filled or ahead not in (0, 1):
            return None
        cells = list(zip(self._bits, "".join(columns), strict=True))
        first, second = (sum(bit for bit, mark in cells if mark == player) for player in "xo")
        return BoardState(second if ahead else first, first | second, (first | second).bit_count())
