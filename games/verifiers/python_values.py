"""Values of Python as answers: dicts, lists of strings, None, compared by value and type."""

from __future__ import annotations

import ast
import re
from typing import Any

_MAX_LENGTH = 500
_LITERAL = re.compile(r"\s*[\[({].*['\"].*[\])}]\s*|\s*\{.*:.*\}\s*", re.S)
"""Container with strings, or a dict."""
_ASKS_FOR_OUTPUT = re.compile(r"\b(?:prints?|printed|outputs?|console)\b|\bprint\(", re.I)


def matches_python_value(gold: str, answer: str, question: str) -> bool | None:
    """Return True if `answer` is the Python value or printed line `gold`, None if `gold` is neither."""
    if max(len(gold), len(answer)) > _MAX_LENGTH:
        return None
    if _LITERAL.fullmatch(gold) and "\\" not in gold:
        right, stated = _value(gold), _value(answer)
        return None if right is None else types_in(right) == types_in(stated) and right == stated
    if _ASKS_FOR_OUTPUT.search(question) and re.search(r"\w \w", gold):
        # In the output of `print`, the number of spaces matters.
        return True if gold.split() == answer.split() else False if gold.split(" ") != answer.split(" ") else None
    return None


def types_in(value: Any) -> Any:
    """Return the types of a value and of its items, which must be equal, too: True is not 1."""
    if isinstance(value, dict):
        return (type(value), {key: types_in(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return (type(value), [types_in(item) for item in value])
    return type(value)


def _value(text: str) -> Any:
    """Return the value of a literal, or None for any other text."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
