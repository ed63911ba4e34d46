"""Names of the numbered actions in PettingZoo's classic games, taken from PettingZoo's documentation."""

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
"""Environment -> names of its actions in numeric order. A cell of tic-tac-toe is a column and a row from the top."""
_CHESS_ACTIONS = 8 * 8 * 73
_COLUMNS = "ABCDEFGHJKLMNOPQRST"
"""Letters of the columns of a Go board, by convention without I."""


def classic_action_names(environment_name: str, seat_index: int, action_count: int) -> Sequence[str]:
    """Return the names of the `action_count` actions of a classic game for the agent at a seat; () for other games."""
    if environment_name == "chess_v6" and action_count == _CHESS_ACTIONS:
        return _chess_action_names(seat_index)
    if environment_name == "go_v5":
        size = round((action_count - 1) ** 0.5)
        return [*(f"{_COLUMNS[i % size]}{size - i // size}" for i in range(action_count - 1)), "pass"]
    names = _NAMES.get(environment_name, ())
    return names if len(names) == action_count else ()


@cache
def _chess_action_names(seat_index: int) -> Sequence[str]:
    """Return UCI names of chess moves; a pawn on the last rank becomes a queen unless the name has another piece.

    The environment shows Black (seat 1) a mirrored board, but names are of the real board. Each square has 73 actions:
    56 moves along lines (8 directions for each of 7 distances), 8 knight's moves, and 9 promotions to lesser pieces (3
    directions, 3 pieces), as in AlphaZero (1712.01815).
    """
    moves: list[tuple[int, int, str]] = []
    for distance, (x, y) in product(range(1, 8), product((-1, 0, 1), repeat=2)):
        if (x, y) != (0, 0):
            moves.append((distance * x, distance * y, ""))
    for x, y in product(range(-2, 3), repeat=2):
        if abs(x) + abs(y) == 3:
            moves.append((x, y, ""))
    for x, piece in product((-1, 0, 1), "nbr"):
        moves.append((x, 1, piece))
    names: list[str] = []
    for column, row in product(range(8), repeat=2):
        for x, y, piece in moves:
            # A chess action that leaves the board is never legal, but every action needs a distinct name.
            name = f"none {len(names)}"
            if 0 <= column + x < 8 and 0 <= row + y < 8:
                name = _square_name(column, row, seat_index) + _square_name(column + x, row + y, seat_index) + piece
            names.append(name)
    return names


def _square_name(column: int, row: int, seat_index: int) -> str:
    """Return the name of a square, such as `e4`; the board of seat 1 (Black) is mirrored."""
    return f"{ascii_letters[column]}{row + 1 if seat_index == 0 else 8 - row}"
