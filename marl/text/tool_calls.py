"""Tool calls written in the text of an answer, as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

One pair of tags may hold a JSON list of calls, as SmolLM2 writes them. Engines translate other formats of tool calls
into this one. JSON that is malformed, repeats a key or has no object of arguments is no call, and is never repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from marl.core.types import Message, ToolCall
from marl.host.untrusted_text import replace_surrogates
from marl.text.json_text import parse_strict_json

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_MARKUP_IN_CALL = re.compile(r"<(?=/?(?:think|tool_call)>)")
_ESCAPED_BRACKET = r"\\u003c"
MAX_CALLS = 128
"""Maximum number of tool calls of an answer, as at OpenAI."""


def parse_tool_calls(spelled: str) -> list[dict[str, Any]]:
    """Return `{"name": ..., "arguments": {...}}` of each call in the JSON text of a call or of a list of calls.

    The result is empty if one of the calls is invalid.
    """
    try:
        values: Any = parse_strict_json(spelled)
    except ValueError:
        return []
    calls: list[dict[str, Any]] = []
    for value in values if isinstance(values, list) else [values]:
        match value:
            case {"name": str(name), "arguments": dict() as arguments} if name:
                calls.append({"name": name, "arguments": arguments})
            case _:
                return []
    return calls


def to_tool_call(name: str, arguments: Any, identifier: str = "") -> ToolCall:
    """Return the call of the tool `name` with canonical `arguments`."""
    return ToolCall(replace_surrogates(name), replace_surrogates(canonical_json(arguments)), identifier)


def split_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Return (text around the tool calls, tool calls) of the answer `text`.

    If one of the calls cannot be parsed, the result is (full text, no calls).
    """
    calls: list[ToolCall] = []
    for spelled in _CALL.findall(text):
        found = parse_tool_calls(spelled)
        if not found or len(calls) + len(found) > MAX_CALLS:
            return text.strip(), ()
        calls += [to_tool_call(**call) for call in found]
    return (_CALL.sub("", text) if calls else text).strip(), tuple(calls)


def join_tool_calls(content: str, tool_calls: tuple[ToolCall, ...]) -> str:
    """Return an answer with `content` and `tool_calls`: the inverse of `split_tool_calls`."""
    lines = [content] if content else []
    for call in tool_calls:
        spelled = f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'
        # Within JSON, `<` occurs in strings only, where the escape has the same meaning.
        lines.append(f"<tool_call>{_MARKUP_IN_CALL.sub(_ESCAPED_BRACKET, spelled)}</tool_call>")
    return "\n".join(lines)


def with_tool_fields_as_text(message: Message) -> Message:
    """Return `message` with its tool calls, or as the result of a call, in the spelling of Qwen and Hermes as text."""
    if message.calls:
        return Message("assistant", join_tool_calls(message.content, message.calls))
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    return message


def with_call_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """Return `messages` with identifiers for calls and results that have none, as some templates demand them.

    Results get the identifiers of the calls before them, in order.
    """
    if not any(message.calls or message.role == "tool" for message in messages):
        return messages
    identified: list[Message] = []
    unanswered: list[str] = []
    for index, message in enumerate(messages):
        if message.calls:
            calls = [call._replace(id=call.id or f"{index:06d}{place:03d}") for place, call in enumerate(message.calls)]
            unanswered = [call.id for call in calls]
            message = message._replace(calls=tuple(calls))
        elif message.role == "tool" and not message.call_id and unanswered:
            message = message._replace(call_id=unanswered.pop(0))
        identified.append(message)
    return identified


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text in one canonical spelling: keys sorted, no optional spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
