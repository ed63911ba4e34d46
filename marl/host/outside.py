"""Text from outside (models, endpoints, data files), made safe to store, to encode and to show."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

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

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL.sub(escape, text)


def parse_json(text: str, *, finite: bool = False) -> Any:
    """Return the value of a JSON text, with lone surrogates in its strings replaced.

    Raises:
        ValueError: if the text is not JSON, is nested deeper than `MAX_JSON_DEPTH`, or (with `finite`) holds a number
            that is not finite.
    """
    too_deep = ValueError(f"nested deeper than {MAX_JSON_DEPTH} lists and objects")
    try:
        value = (_FINITE if finite else _ANY).decode(text)
    except RecursionError:
        raise too_deep from None
    # Counting brackets is cheap, and only a text with many of them can be nested deeply.
    brackets = text.count("[") + text.count("{")
    if brackets > MAX_JSON_DEPTH and _is_deeper(value, MAX_JSON_DEPTH):
        raise too_deep
    if _SPELLED_SURROGATE.search(text) or _SURROGATE.search(text):
        return _well_formed(value)
    return value


def _finite_float(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number[:20]} is no finite number")


_ANY, _FINITE = json.JSONDecoder(), json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse)


def _is_deeper(value: Any, limit: int) -> bool:
    """Return True if lists and objects are nested deeper than `limit`. It walks level by level, without recursion."""
    level = [value]
    for _ in range(limit):
        next_level = []
        for outer in level:
            if isinstance(outer, dict):
                next_level += outer.values()
            elif isinstance(outer, list):
                next_level += outer
        level = next_level
    return any(isinstance(inner, list | dict) for inner in level)


def _well_formed(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(name): _well_formed(inner) for name, inner in value.items()}
    return [_well_formed(inner) for inner in value] if isinstance(value, list) else value
