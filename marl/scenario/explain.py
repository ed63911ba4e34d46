"""What pydantic found wrong, in the words of a scenario's author: field, value, what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marl.config import nearest

_WHOLE, _NUMBER, _BOOL = "must be a whole number", "must be a number", "must be true or false"
_MAPPING, _LIST = "must be a mapping (`name: value`)", "must be a list ([a, b])"
_WORDS = {
    "missing": "missing; it must be given",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": _BOOL,
    "bool_parsing": _BOOL,
    "string_type": "must be text",
    "path_type": "must be a path",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length}, has {actual_length}",
    "too_long": "must have at most {max_length}, has {actual_length}",
}
"""Kinds of pydantic's errors -> what we say."""


def explain(error: ValidationError) -> list[str]:
    """One line for each problem."""
    return [line for details in error.errors() for line in _lines(details)]


def _lines(details: ErrorDetails) -> Iterator[str]:
    where, context = ".".join(map(str, details["loc"])), details.get("ctx", {})
    if details["type"] == "wrong":
        for field, problem in context["below"].items():
            yield f"{where}.{field}: {problem}" if where else f"{field}: {problem}"
        return
    lines = _message(details["type"], details["msg"], context, details["input"]).split("\n")
    if not where:
        yield from lines
        return
    for line in lines:
        yield f"{where}: {line}{_got(details, line)}"


def _message(kind: str, message: str, context: Mapping[str, Any], value: Any) -> str:
    if kind == "literal_error":
        return _choose(context["expected"], value)
    if kind in _WORDS:
        return _WORDS[kind].format(**context)
    return message.removeprefix("Value error, ")


def _choose(expected: str, value: Any) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    return f"unknown; {nearest(str(value), choices)}" if choices else f"must be {expected}"


def _got(details: ErrorDetails, line: str) -> str:
    """The value, where the message does not say it already and it is no whole section of the file."""
    value = details["input"]
    shown = repr(value)
    section = isinstance(value, Mapping) and details["type"] in ("value_error", "missing")
    if section or details["type"] == "missing" or (isinstance(value, str) and shown in line):
        return ""
    return f" (got {shown if len(shown) <= 80 else shown[:77] + '...'})"
