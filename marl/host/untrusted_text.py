"""Parsing and cleaning of text from outside (models, endpoints, data files), to store, encode and show it safely."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SPELLED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, marks that change the direction of text, and lone surrogates."""
MAX_JSON_DEPTH = 100
"""Maximum nesting depth of JSON from outside, so that recursive readers never exhaust the stack."""


def replace_surrogates(text: str) -> str:
    """Return `text` with each lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def escape_for_terminal(text: str) -> str:
    r"""Return `text` with control characters escaped (`\x1b`), so that a terminal prints and never executes them."""

    def escape_control_character(control: re.Match[str]) -> str:
        code = ord(control[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL.sub(escape_control_character, text)


def parse_json(text: str, *, only_finite_numbers: bool = False) -> Any:
    """Return the value of the JSON `text`, with lone surrogates in strings replaced.

    Raises:
        ValueError: if the text is not JSON, is nested deeper than `MAX_JSON_DEPTH`, or (with `only_finite_numbers`)
            holds a number that is not finite.
    """
    too_deep = ValueError(f"nested deeper than {MAX_JSON_DEPTH} lists and objects")
    try:
        value = (_FINITE_JSON_DECODER if only_finite_numbers else _JSON_DECODER).decode(text)
    except RecursionError:
        raise too_deep from None
    # A text with few brackets cannot be nested deeply, so the levels are counted only if there are many.
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        # The levels are counted in a loop: recursion could exceed the stack on this value.
        level = [value]
        for _ in range(MAX_JSON_DEPTH):
            next_level: list[Any] = []
            for outer in level:
                if isinstance(outer, dict):
                    next_level += outer.values()
                elif isinstance(outer, list):
                    next_level += outer
            level = next_level
        if any(isinstance(inner, list | dict) for inner in level):
            raise too_deep
    # Surrogates are rare, so the value is walked only if the text contains one. Quick tests come before the searches.
    if ("\\u" in text and _SPELLED_SURROGATE.search(text)) or (not text.isascii() and _SURROGATE.search(text)):
        return _replace_surrogates_in_json(value)
    return value


def _parse_finite_float(number: str) -> float:
    """Return the value of `number`, or raise ValueError if it is infinite or NaN."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no finite number")
    return value


_JSON_DECODER = json.JSONDecoder()
_FINITE_JSON_DECODER = json.JSONDecoder(parse_float=_parse_finite_float, parse_constant=_parse_finite_float)


def _replace_surrogates_in_json(value: Any) -> Any:
    """Return the JSON `value` with each lone surrogate in its strings replaced by U+FFFD."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(name): _replace_surrogates_in_json(inner) for name, inner in value.items()}
    return list(map(_replace_surrogates_in_json, value)) if isinstance(value, list) else value
