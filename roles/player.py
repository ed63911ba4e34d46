"""A player of games with a finite list of moves."""

from __future__ import annotations

from roles.base import BaseRole
from roles.parsing import brackets


class Player(BaseRole):
    """Thinks aloud if it likes, then names exactly one legal move in square brackets."""

    kind: str = "player"

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        named = set(brackets(text))
        if legal is not None:
            # However it is written, a move is handed to the game as the game spells it.
            spelled = {move.lower(): move for move in legal}
            named = {spelled[said.lower()] for said in named if said.lower() in spelled}
        return named.pop() if len(named) == 1 else None

    def phrase(self, move: str) -> str:
        return f"[{move}]"
