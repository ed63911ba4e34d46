"""Seats that answer by rule: those that verify, and those that run tools. They hand on words, and add none."""

from __future__ import annotations

from marl.conversations import conversations
from marl.protocols import RoleConfig, View
from marl.types import Message
from roles import parsing

_NOTHING = "(nothing)"


class Verifier(RoleConfig):
    """Has the last turn it heard verified, word for word; for `engine: {kind: verifiers}`.

    Its move is the engine's JSON, `{"scores": {check: number}, ...}`.
    """

    kind: str = "verifier"
    trainable: bool = False

    def messages(self, view: View) -> tuple[Message, ...]:
        heard = view.unread or view.read
        return (Message("user", heard[-1].completion.text if heard else ""),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        found = parsing.json_value(text)
        scores = found.get("scores") if isinstance(found, dict) else None
        if not isinstance(scores, dict) or not all(_number(score) for score in scores.values()):
            return None
        move = parsing.compact(found)
        return move if legal is None or move in legal else None

    def phrase(self, move: str) -> str:
        return move


class Rater(Verifier):
    """Has the last turn it heard rated, with the conversation that led to it; for `engine: {kind: reward_model}`."""

    kind: str = "rater"

    def messages(self, view: View) -> tuple[Message, ...]:
        heard = [*view.read, *view.unread]
        mine = [turn for turn in heard if turn.agent == heard[-1].agent]
        return [chat for _, chat in conversations(mine)][-1] if mine else (Message("user", ""),)


class Toolbox(RoleConfig):
    """Runs the tool that was called; for `engine: {kind: tools}`, which finds the call in the game's state."""

    kind: str = "toolbox"
    trainable: bool = False

    def messages(self, view: View) -> tuple[Message, ...]:
        return (Message("user", view.info["state"] or _NOTHING),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        # A tool that returns nothing was called nevertheless.
        move = text if text.strip() else _NOTHING
        return move if legal is None or move in legal else None

    def phrase(self, move: str) -> str:
        return move


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
