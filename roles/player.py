"""A player of games with a finite list of moves."""

from __future__ import annotations

import re

from roles.base import BaseRole

_BRACKETED = re.compile(r"\[(.+?)\]")


class Player(BaseRole):
    """Thinks aloud if it likes, then names exactly one legal move in square brackets."""

    kind: str = "player"

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        named = {move.strip().lower() for move in _BRACKETED.findall(text)}
        moves = [move for move in named if move in legal] if legal is not None else list(named)
        return moves[0] if len(moves) == 1 else None

    def phrase(self, move: str) -> str:
        return f"[{move}]"
