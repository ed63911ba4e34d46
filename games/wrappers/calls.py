"""Chat environments in words: a conversation as one text, and calls of tools in what a player says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from marl.json_text import last_json
from marl.types import CALL

HOW_TO_CALL = 'To use a tool, write JSON: {"name": ..., "arguments": {...}}. What is no call is your answer.'


def conversation(messages: Iterable[tuple[str, str]]) -> str:
    """Return (speaker, words) as one text; before the assistant has spoken, without the names of the speakers."""
    turns = list(messages)
    if all(speaker != "assistant" for speaker, _ in turns):
        return "\n\n".join(words for _, words in turns)
    return "\n\n".join(f"{speaker}: {words}" for speaker, words in turns)


def read_call(text: str, tools: Collection[str]) -> tuple[str, dict[str, Any]] | None:
    """Return (name, arguments) of the tool that a text calls; None if it calls none."""
    try:
        call = last_json(text.removeprefix(CALL))
    except ValueError:
        return None
    match call:
        case {"name": str(name), "arguments": dict(arguments), **rest} if name in tools and not rest:
            return name, arguments
    return None


def manual(tools: Mapping[str, str]) -> str:
    """Return a text that tells of tools (name -> what it does and takes) and how to call them; "" without tools."""
    if not tools:
        return ""
    return "\n".join(["Tools:", *(f"- {text}" for text in tools.values()), HOW_TO_CALL])


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a function's name, parameters and docstring, on one line."""
    text = " ".join(inspect.cleandoc(function.__doc__ or "").split())
    try:
        parameters = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker can read
        parameters = inspect.signature(function)
    return f"{name}{parameters}: {text}"
