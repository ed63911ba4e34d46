"""Roles of seats that answer by rule: verifiers, reward models and tools. They pass texts on and add none."""

from __future__ import annotations

from typing import ClassVar

from marl.graph import conversations
from marl.protocols import RoleConfig, View
from marl.types import Message
from roles import parsing

_NOTHING = "(nothing)"


class RuleRole(RoleConfig):
    """Base of roles whose engine answers by rule: never trained, and the text is the move."""

    hears_thoughts: ClassVar[bool] = True
    trainable: bool = False
    """Learn from the role's turns: there is nothing to learn."""

    def phrase(self, move: str) -> str:
        return move


class VerifierRole(RuleRole):
    """Passes the last turn it heard, word for word, to `engine: {kind: verifiers}`.

    Its move is the engine's JSON, `{"scores": {check: number}, ...}`.
    """

    kind: str = "verifier"

    def messages(self, view: View) -> tuple[Message, ...]:
        heard = view.unread or view.read
        return (Message("user", heard[-1].completion.text if heard else ""),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        verdict = parsing.json_value(text)
        scores = verdict.get("scores") if isinstance(verdict, dict) else None
        # JSON's numbers; `true` is an int to Python.
        if not isinstance(scores, dict) or any(type(score) not in (int, float) for score in scores.values()):
            return None
        move = parsing.compact(verdict)
        return move if legal is None or move in legal else None


class RaterRole(VerifierRole):
    """Passes the last turn it heard, with its conversation, to `engine: {kind: reward_model}`."""

    kind: str = "rater"

    def messages(self, view: View) -> tuple[Message, ...]:
        heard = [*view.read, *view.unread]
        turns = [turn for turn in heard if turn.agent == heard[-1].agent]
        return [chat for _, chat in conversations(turns)][-1] if turns else (Message("user", ""),)


class ToolboxRole(RuleRole):
    """Answers a tool call of another agent by `engine: {kind: tools}`, which reads the call from the game's state."""

    answers_calls: ClassVar[bool] = True
    kind: str = "toolbox"

    def messages(self, view: View) -> tuple[Message, ...]:
        return (Message("user", view.info["state"] or _NOTHING),)

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        # A tool that returns nothing was called nevertheless.
        move = text if text.strip() else _NOTHING
        return move if legal is None or move in legal else None
