"""Text from outside (models, endpoints, data files), made safe to store, to encode and to show."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SPELLED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, marks that turn the direction of text around, and lone surrogates."""
DEEPEST = 100
"""Most lists and objects within one another in JSON from outside; whoever reads it recursively is safe, too."""


def well_formed(text: str) -> str:
    """Return `text` with each lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def for_terminal(text: str) -> str:
    r"""Return `text` with control characters spelled out (`\x1b`), so that a terminal shows and does not obey them."""
    return _CONTROL.sub(lambda match: _escape(match[0]), text)


def _escape(sign: str) -> str:
    return f"\\x{ord(sign):02x}" if ord(sign) < 256 else f"\\u{ord(sign):04x}"


def read_json(text: str, *, finite: bool = False) -> Any:
    """Return the value of a JSON text, its strings well-formed.

    Raises:
        ValueError: if it is no JSON, nested deeper than `DEEPEST`, or (`finite`) holds a number that is not finite.
    """
    try:
        value = (_FINITE if finite else _ANY).decode(text)
    except RecursionError:
        raise _too_deep() from None
    brackets = text.count("[") + text.count("{")
    if brackets > DEEPEST and _is_deeper(value, DEEPEST):
        raise _too_deep()
    return _well_formed_value(value) if _SPELLED_SURROGATE.search(text) or _SURROGATE.search(text) else value


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {DEEPEST} lists and objects")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number[:20]} is no finite number")


_ANY, _FINITE = json.JSONDecoder(), json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inner(outer)]
    return any(isinstance(value, list | dict) for value in level)


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _well_formed_value(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {well_formed(name): _well_formed_value(inner) for name, inner in value.items()}
    return [_well_formed_value(inner) for inner in value] if isinstance(value, list) else value
