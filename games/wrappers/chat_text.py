"""Text form of chat environments: a conversation as one text, and tool calls in a player's text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from marl.core.types import TOOL_CALL_PREFIX
from marl.text.json_text import last_json

HOW_TO_CALL = 'To use a tool, write JSON: {"name": ..., "arguments": {...}}. What is no call is your answer.'


def format_conversation(messages: Iterable[tuple[str, str]]) -> str:
    """Return (speaker, text) pairs as one text, without speakers' names before the assistant's first message."""
    turns = list(messages)
    if all(speaker != "assistant" for speaker, _ in turns):
        return "\n\n".join(text for _, text in turns)
    return "\n\n".join(f"{speaker}: {text}" for speaker, text in turns)


def parse_tool_call(text: str, tools: Collection[str]) -> tuple[str, dict[str, Any]] | None:
    """Return (name, arguments) of the tool call in `text`, or None without a call of one of `tools`."""
    try:
        call = last_json(text.removeprefix(TOOL_CALL_PREFIX))
    except ValueError:
        return None
    match call:
        case {"name": str(name), "arguments": dict(arguments), **rest} if name in tools and not rest:
            return name, arguments
    return None


def tool_instructions(tools: Mapping[str, str]) -> str:
    """Return instructions for tools (name -> description) and for calling them, or "" without tools."""
    if not tools:
        return ""
    return "\n".join(["Tools:", *(f"- {text}" for text in tools.values()), HOW_TO_CALL])


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a function's name, parameters and docstring, on one line."""
    text = " ".join(inspect.cleandoc(function.__doc__ or "").split())
    try:
        parameters = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation under TYPE_CHECKING cannot be evaluated at run time
        parameters = inspect.signature(function)
    return f"{name}{parameters}: {text}"
