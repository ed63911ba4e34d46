"""The key of an endpoint, which is shown nowhere."""

from __future__ import annotations

from base64 import b64encode
from itertools import groupby
from urllib.parse import quote

_PIECE = 8
"""Length of the pieces of a key, in characters, that are hidden, too: an echo may be cut anywhere."""
_SHOWN = 200
"""Characters of an excerpt."""
_READ = 4000
"""Characters of which an excerpt is made, so that what it hides cannot use it up."""
_HIDDEN = "(the key)"


class Key:
    """A key that a server may echo: plain, percent-encoded or in base64, whole or in part, in any case of letters."""

    def __init__(self, text: str) -> None:
        self._text = text
        spellings = [spelling.lower() for spelling in (text, quote(text, safe=""), b64encode(text.encode()).decode())]
        self._pieces = {s[i : i + _PIECE] for s in spellings for i in range(max(1, len(s) - _PIECE + 1)) if s}

    def __repr__(self) -> str:
        return "Key()"

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that prove who asks; none without a key."""
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def excerpt(self, text: str) -> str:
        """Return the beginning of a text for messages, without the key."""
        shown = self._hide(text[:_READ])[:_SHOWN]
        more = len(text) - _SHOWN
        return repr(shown) + (f" and {more} characters more" if more > 0 else "")

    def unsaid(self, text: str) -> str:
        """Return a whole text without the key, which others would hear and trajectories record."""
        # A short key, such as `EMPTY` of a server that wants none, may well be a word of the text.
        return text.replace(self._text, _HIDDEN) if len(self._text) >= _PIECE else text

    def _hide(self, text: str) -> str:
        # Letter by letter: the case of some letters outside ASCII has another length.
        lower = "".join(letter.lower() if letter.isascii() else letter for letter in text)
        lengths = {len(piece) for piece in self._pieces}
        hidden = {
            place
            for length in lengths
            for start in range(len(lower) - length + 1)
            if lower[start : start + length] in self._pieces
            for place in range(start, start + length)
        }
        spans = groupby(range(len(text)), hidden.__contains__)
        return "".join(_HIDDEN if inside else "".join(text[i] for i in span) for inside, span in spans)
