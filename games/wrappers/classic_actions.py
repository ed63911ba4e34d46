"""Names for the numbered actions of PettingZoo's classic games, after their documentation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from string import ascii_letters

_LIMIT = ("call", "raise", "fold", "check")
_NAMES: dict[str, Sequence[str]] = {
    "leduc_holdem_v4": _LIMIT,
    "texas_holdem_v4": _LIMIT,
    "texas_holdem_no_limit_v6": ("fold", "check or call", "raise half pot", "raise full pot", "all in"),
    "rps_v2": ("rock", "paper", "scissors"),
    "connect_four_v3": [f"column {column}" for column in range(1, 8)],
    "tictactoe_v3": [f"{column}{row}" for column, row in product("abc", "123")],
}
"""Environment -> names of its actions in numeric order. Cells of tic-tac-toe: column, then row from the top."""
_CHESS_ACTIONS = 8 * 8 * 73
_COLUMNS = "ABCDEFGHJKLMNOPQRST"
"""Columns of a Go board, by convention without the letter I."""


def names_of_actions(environment: str, seat: int, count: int) -> Sequence[str]:
    """Return the names of the `count` actions of a classic game for the agent at `seat`, or () for other games."""
    if environment == "chess_v6" and count == _CHESS_ACTIONS:
        return _chess(seat)
    if environment == "go_v5":
        size = round((count - 1) ** 0.5)
        return [*(f"{_COLUMNS[i % size]}{size - i // size}" for i in range(count - 1)), "pass"]
    names = _NAMES.get(environment, ())
    return names if len(names) == count else ()


@cache
def _chess(seat: int) -> Sequence[str]:
    """Return UCI names of chess moves; a pawn on the last rank becomes a queen unless the name has another piece.

    The environment shows Black (seat 1) a mirrored board, but names are of the real board. Each square has 73 actions:
    56 moves along lines (8 directions for each of 7 distances), 8 knight's moves, and 9 promotions to lesser pieces (3
    directions, 3 pieces), as in AlphaZero (1712.01815).
    """
    steps = [step for step in product((-1, 0, 1), repeat=2) if step != (0, 0)]
    jumps = [(x, y) for x, y in product(range(-2, 3), repeat=2) if abs(x) + abs(y) == 3]
    moves = [(distance * x, distance * y, "") for distance in range(1, 8) for x, y in steps]
    moves += [(x, y, "") for x, y in jumps]
    moves += [(x, 1, piece) for x in (-1, 0, 1) for piece in "nbr"]
    names = []
    for column, row in product(range(8), repeat=2):
        for x, y, piece in moves:
            to = (column + x, row + y)
            is_move = all(0 <= coordinate < 8 for coordinate in to)
            names.append(_square(column, row, seat) + _square(*to, seat) + piece if is_move else f"none {len(names)}")
    return names


def _square(column: int, row: int, seat: int) -> str:
    return f"{ascii_letters[column]}{row + 1 if seat == 0 else 8 - row}"
