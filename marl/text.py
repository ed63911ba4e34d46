"""Text from outside (models, endpoints, data files), made safe to store, to encode and to show."""

from __future__ import annotations

import re

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, marks that turn the direction of text around, and lone surrogates."""


def well_formed(text: str) -> str:
    """Return `text` with each lone surrogate replaced by U+FFFD, so that it can be encoded as UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def for_terminal(text: str) -> str:
    r"""Return `text` with control characters spelled out (`\x1b`), so that a terminal shows and does not obey them."""
    return _CONTROL.sub(lambda match: _escape(match[0]), text)


def _escape(sign: str) -> str:
    return f"\\x{ord(sign):02x}" if ord(sign) < 256 else f"\\u{ord(sign):04x}"
