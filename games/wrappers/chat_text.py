"""Chat environments as text: a conversation as one text, and the tool call in a player's text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from marl.core.types import TOOL_CALL_PREFIX
from marl.text.json_text import last_json_value

HOW_TO_CALL = 'To use a tool, write JSON: {"name": ..., "arguments": {...}}. What is no call is your answer.'


def format_conversation(messages: Iterable[tuple[str, str]]) -> str:
    """Return (speaker, text) pairs as one text. Speakers are named only once the assistant has written a message."""
    turns = list(messages)
    named = "assistant" in dict(turns)
    return "\n\n".join(f"{speaker}: {text}" if named else text for speaker, text in turns)


def parse_tool_call(text: str, tools: Collection[str]) -> tuple[str, dict[str, Any]] | None:
    """Return (name, arguments) of the tool call in `text`, or None if `text` calls none of `tools`."""
    try:
        call = last_json_value(text.removeprefix(TOOL_CALL_PREFIX))
    except ValueError:
        return None
    match call:
        case {"name": str(name), "arguments": dict(arguments), **rest} if name in tools and not rest:
            return name, arguments
    return None


def tool_instructions(tools: Mapping[str, str]) -> str:
    """Return a list of the tools (name -> description) with instructions for calling them, or "" without tools."""
    if not tools:
        return ""
    return "\n".join(["Tools:", *(f"- {text}" for text in tools.values()), HOW_TO_CALL])


def describe_tool(name: str, function: Callable[..., Any]) -> str:
    """Return the name, parameters and docstring of `function` on one line, as a description for models."""
    text = " ".join(inspect.cleandoc(function.__doc__ or "").split())
    try:
        parameters = inspect.signature(function, eval_str=True)
    except NameError:  # annotations that are imported only under TYPE_CHECKING do not exist at run time
        parameters = inspect.signature(function)
    return f"{name}{parameters}: {text}"
