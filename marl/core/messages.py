"""Messages of a chat, with tool calls and their results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema


class ToolCall(NamedTuple):
    """Call of a tool by a model."""

    name: str
    """Name of the tool."""
    arguments: str
    """Arguments as canonical JSON, an object."""
    id: str = ""
    """Identifier by which a message with the result names this call; "" if no message does."""


MessageRole = Literal["system", "user", "assistant", "tool"]
"""Author of a message. `tool`: the message is the result of a tool call."""


class Message(NamedTuple):
    """One message of a chat prompt, before the chat template turns it into tokens. Files omit trailing empty fields."""

    role: MessageRole
    content: str
    calls: tuple[ToolCall, ...] = ()
    """Tool calls that follow the content of an assistant's message."""
    call_id: str = ""
    """Identifier of the call whose result a `tool` message holds; "" if the call has none."""
    name: str = ""
    """Name of the tool whose result a `tool` message holds; "" if it is unknown."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema = handler(source)
        schema["serialization"] = core_schema.plain_serializer_function_ser_schema(_without_trailing_empty_fields)
        return schema

    def to_dict(self) -> dict[str, Any]:
        """Return the message as chat templates and chat data sets spell it, without empty fields."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content}
        for call in self.calls:
            function = {"name": call.name, "arguments": json.loads(call.arguments)}
            identifier = {"id": call.id} if call.id else {}
            fields.setdefault("tool_calls", []).append({**identifier, "type": "function", "function": function})
        if self.call_id:
            fields["tool_call_id"] = self.call_id
        if self.name:
            fields["name"] = self.name
        return fields


def _without_trailing_empty_fields(message: Message) -> list[Any]:
    """Return the fields of `message` up to its last field that is not empty, and at least role and content."""
    fields = list(message)
    while len(fields) > 2 and not fields[-1]:
        fields.pop()
    return fields


@dataclass(frozen=True, slots=True)
class JudgedText:
    """Prompt and answer of a turn as text, with its scores, for learners that read texts instead of tokens."""

    messages: tuple[Message, ...]
    """Prompt of the turn."""
    answer: str
    scores: tuple[str, ...] = ()
    """Rewards of the turn's agent and verdicts on the turn, with their reasons, one text each."""
