"""Tool calls written in the text of an answer, as `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from marl.host.untrusted_text import parse_json

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_MAX_CALLS = 128
"""Maximum number of tool calls of an answer, as at OpenAI."""


class TextToolCall(NamedTuple):
    """Tool call that a model has written into its answer."""

    name: str
    """Name of the tool."""
    arguments: str
    """Arguments as canonical JSON, an object."""


def split_tool_calls(text: str) -> tuple[str, tuple[TextToolCall, ...]]:
    """Return (text around the tool calls, tool calls) of the answer `text`.

    If one of the calls cannot be parsed, the result is (full text, no calls).
    """
    calls: list[TextToolCall] = []
    for spelled in _CALL.findall(text):
        try:
            value: Any = parse_json(spelled, only_finite_numbers=True)
        except ValueError:
            return text.strip(), ()
        match value:
            case {"name": str(name), "arguments": dict() as arguments} if name:
                calls.append(TextToolCall(name, canonical_json(arguments)))
            case _:
                return text.strip(), ()
    if len(calls) > _MAX_CALLS:
        return text.strip(), ()
    return (_CALL.sub("", text) if calls else text).strip(), tuple(calls)


def join_tool_calls(content: str, tool_calls: tuple[TextToolCall, ...]) -> str:
    """Return an answer with `content` and `tool_calls`: the inverse of `split_tool_calls`."""
    lines = [content] if content else []
    lines += [
        f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {spelled}}}</tool_call>' for name, spelled in tool_calls
    ]
    return "\n".join(lines)


def canonical_json(value: Any) -> str:
    """Return `value` as JSON text in one canonical spelling: keys sorted, no optional spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
