"""API key of an endpoint, kept out of messages, logs and trajectories."""

from __future__ import annotations

from base64 import b64encode
from itertools import groupby
from urllib.parse import quote

_PIECE = 8
"""Length of the key's pieces, in characters. Pieces are hidden too: a server may echo any part of a key."""
_SHOWN = 200
"""Maximum length of an excerpt, in characters."""
_READ = 4000
"""Characters of a text from which an excerpt is made; more than `_SHOWN`, as hiding shortens the text."""
_HIDDEN = "(the key)"


class ApiKey:
    """A key, with the spellings in which servers echo it: plain, percent-encoded, base64, in part, in any case."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: set[str] = set()
        for spelling in (text, quote(text, safe=""), b64encode(text.encode()).decode()):
            lower = spelling.lower()
            for start in range(max(1, len(lower) - _PIECE + 1)):
                self._pieces.add(lower[start : start + _PIECE])
        self._pieces.discard("")

    def __repr__(self) -> str:
        return "Key()"

    @property
    def headers(self) -> dict[str, str]:
        """Authorization header, or no header if the key is empty."""
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def excerpt(self, text: str) -> str:
        """Return the beginning of `text` for an error message, with every piece of the key hidden."""
        head = text[:_READ]
        # Letter by letter: some letters outside ASCII change their length with their case.
        lower = "".join(letter.lower() if letter.isascii() else letter for letter in head)
        hidden = [False] * len(head)
        for length in {len(piece) for piece in self._pieces}:
            for start in range(len(lower) - length + 1):
                if lower[start : start + length] in self._pieces:
                    hidden[start : start + length] = [True] * length
        shown = ""
        for is_hidden, indices in groupby(range(len(head)), hidden.__getitem__):
            shown += _HIDDEN if is_hidden else "".join(head[index] for index in indices)
        more = len(text) - _SHOWN
        return repr(shown[:_SHOWN]) + (f" and {more} characters more" if more > 0 else "")

    def redact(self, text: str) -> str:
        """Return `text` with the key removed. Completions are redacted: other agents read them, runs record them."""
        # A short key, such as `EMPTY` of a server without authentication, may well be a word of the text.
        return text.replace(self._text, _HIDDEN) if len(self._text) >= _PIECE else text
