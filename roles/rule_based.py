"""Roles of rule-based seats (verifiers, reward models, tools), whose prompts are other agents' texts, unchanged."""

from __future__ import annotations

from typing import ClassVar

from marl.core.graph import chats_up_to_each_turn
from marl.core.types import Message
from marl.protocols import PromptContext, RoleConfig
from marl.roles import parsing

_NOTHING = "(nothing)"


class RuleBasedRole(RoleConfig):
    """Base of roles with a rule-based engine; the role is never trained, and the engine's text is the move."""

    hears_thoughts: ClassVar[bool] = True
    trainable: bool = False
    """True to train on the role's turns; rule-based engines have no weights to train."""

    def phrase(self, move: str) -> str:
        return move


class VerifierRole(RuleBasedRole):
    """Passes the text of the last turn it heard unchanged to `engine: {kind: verifiers}`.

    The move is the engine's JSON, `{"scores": {check: number}, ...}`, with a list of numbers, one a segment, from a
    check that scores segments.
    """

    kind: str = "verifier"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        heard = context.new_turns or context.read_turns
        return (Message("user", heard[-1].completion.text if heard else ""),)

    def offsets_of_read_segments(self, context: PromptContext) -> tuple[int, ...]:
        heard = context.new_turns or context.read_turns
        return heard[-1].completion.segment_offsets if heard else ()

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        verdict = parsing.parse_json_value(text)
        scores = verdict.get("scores") if isinstance(verdict, dict) else None
        if not isinstance(scores, dict):
            return None
        for score in scores.values():
            numbers = score if isinstance(score, list) else [score]
            # Types are compared exactly, because YAML's and JSON's `true` is a bool, and so an instance of int.
            if not {int, float}.issuperset(map(type, numbers)):
                return None
        move = parsing.compact_json(verdict)
        return move if legal is None or move in legal else None


class RewardModelRole(VerifierRole):
    """Passes the last turn it heard, with its conversation, to `engine: {kind: reward_model}`."""

    kind: str = "rater"

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        heard = [*context.read_turns, *context.new_turns]
        if not heard:
            return (Message("user", ""),)
        turns = [turn for turn in heard if turn.agent == heard[-1].agent]
        *_, (_, last_conversation) = chats_up_to_each_turn(turns)
        return last_conversation


class ToolboxRole(RuleBasedRole):
    """Answers a tool call of another agent by `engine: {kind: tools}`, which reads the call from the game's state."""

    answers_calls: ClassVar[bool] = True
    kind: str = "toolbox"
    shows_earlier_calls: bool = False
    """Show the engine the earlier calls of the episode and their results. The scenario sets it where a tool needs it.
    """

    def messages(self, context: PromptContext) -> tuple[Message, ...]:
        messages: list[Message] = []
        for turn in context.own_turns if self.shows_earlier_calls else ():
            messages += [Message("user", turn.request.state), Message("assistant", turn.action or "")]
        return (*messages, Message("user", context.info["state"] or _NOTHING))

    def parse(self, text: str, legal: tuple[str, ...] | None) -> str | None:
        # An empty output of a tool needs a placeholder as move, because the tool has been called.
        move = text if text.strip() else _NOTHING
        return move if legal is None or move in legal else None
