"""API key of an endpoint, kept out of messages, logs and trajectories."""

from __future__ import annotations

import os
from base64 import b64encode
from itertools import groupby
from urllib.parse import quote

_REDACTED_PIECE_LENGTH = 8
"""Minimum length in characters of the parts of a key that are redacted, because a server may echo a part of the key."""
_MAX_EXCERPT_LENGTH = 200
"""Maximum length of an excerpt, in characters."""
_SEARCHED_LENGTH = 4000
"""Number of characters of a text that are searched for the key, more than an excerpt has because redaction shortens."""
_REDACTION_TEXT = "(the key)"


def api_key_from_environment(variable_name: str | None) -> str:
    """Return the API key in the environment variable `variable_name`, or "" if `variable_name` is None."""
    return os.environ[variable_name].strip() if variable_name else ""


class ApiKey:
    """API key, which is hidden in excerpts if a server echoes it: plain, percent-encoded, in base64, or in part."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        """HTTP header with the key, or no header if the key is empty."""
        self._pieces: set[str] = set()
        for spelling in (key, quote(key, safe=""), b64encode(key.encode()).decode()):
            lower = spelling.lower()
            for start in range(max(1, len(lower) - _REDACTED_PIECE_LENGTH + 1)):
                self._pieces.add(lower[start : start + _REDACTED_PIECE_LENGTH])
        self._pieces.discard("")

    def __repr__(self) -> str:
        return "Key()"

    def redacted_excerpt(self, text: str) -> str:
        """Return the beginning of `text` for an error message, with every piece of the key hidden."""
        head = text[:_SEARCHED_LENGTH]
        # Only ASCII letters are lowered, because `str.lower` may change the length of other letters and shift indices.
        lower = "".join(letter.lower() if letter.isascii() else letter for letter in head)
        hidden = [False] * len(head)
        for length in set(map(len, self._pieces)):
            for start in range(len(lower) - length + 1):
                if lower[start : start + length] in self._pieces:
                    hidden[start : start + length] = [True] * length
        shown = ""
        for is_hidden, indices in groupby(range(len(head)), hidden.__getitem__):
            shown += _REDACTION_TEXT if is_hidden else "".join(map(head.__getitem__, indices))
        more = len(text) - _MAX_EXCERPT_LENGTH
        return repr(shown[:_MAX_EXCERPT_LENGTH]) + (f" and {more} characters more" if more > 0 else "")

    def redact(self, text: str) -> str:
        """Return `text` with the full key replaced by a placeholder."""
        # A short key is not redacted: `EMPTY` (for a server without authentication) may be a word of the text.
        return text.replace(self._key, _REDACTION_TEXT) if len(self._key) >= _REDACTED_PIECE_LENGTH else text
