"""Places of tokens in the text that a tokenizer made them of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

CUT = "\ufdd0"
"""Marks a cut within a text. Unicode keeps this code point for use inside programs; in contents it is replaced."""
Range = tuple[int, int]
"""The first character or token, and the one after the last."""


class Piece(NamedTuple):
    """A text between two cuts, as it was tokenised."""

    ids: list[int]
    encoding: Any = None
    """As the library `tokenizers` returns it; None of a slow tokenizer."""
    start: int = 0
    """Place of its first character in the whole text."""
    fed: int = 0
    """Characters before it that were tokenised with it and whose tokens were left out."""

    def offsets(self, *, trimmed: bool) -> list[Range]:
        """Return the characters of each token, counted from the beginning of the whole text.

        `trimmed`: the tokenizer leaves out the blanks with which a token begins.
        """
        offsets, shift = self.encoding.offsets[-len(self.ids) :] if self.ids else [], self.start - self.fed
        if trimmed:
            before = accumulate([end for _, end in offsets], max, initial=self.fed)
            offsets = [(min(begin, last), end) for (begin, end), last in zip(offsets, before, strict=False)]
        return [(begin + shift, end + shift) for begin, end in offsets] if shift else offsets


class TokenizedText:
    """A text with cuts, its tokens, and their places in it."""

    def __init__(self, text: str, pieces: list[Piece], tokenizer: Any, *, trimmed: bool) -> None:
        self.text, self._pieces, self._tokenizer, self._trimmed = text, pieces, tokenizer, trimmed
        self.ids = pieces[0].ids if len(pieces) == 1 else [token for piece in pieces for token in piece.ids]

    def tokens(self, spans: Sequence[Range]) -> list[Range] | None:
        """Return the tokens of each span of characters: all that hold one of these, though they may hold others, too.

        A span without characters that are in tokens has none: it ends where it begins, at the first token that does not
        end before it. None, if the places are unknown: of a slow tokenizer whose tokens do not spell the text.
        """
        if self._pieces[0].encoding is None:
            return self._by_spelling(spans)
        offsets = list(chain.from_iterable(piece.offsets(trimmed=self._trimmed) for piece in self._pieces))
        return [_overlapping(len(offsets), lambda t: offsets[t][0], lambda t: offsets[t][1], span) for span in spans]

    def _by_spelling(self, spans: Sequence[Range]) -> list[Range] | None:
        """Return the tokens of spans by decoding: the text must begin with what the first tokens spell."""
        text, ids = self.text.replace(CUT, ""), self.ids

        @cache
        def spelled(count: int) -> str:
            return self._tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)

        def begin(token: int) -> int:
            # Bytes that are no whole character yet are spelled U+FFFD.
            before = spelled(token)
            return len(before if text.startswith(before) else before.rstrip("\ufffd"))

        def end(token: int) -> int:
            return begin(token + 1) + (not text.startswith(spelled(token + 1)))

        if spelled(len(ids)) != text:
            return None
        moved = [[place - self.text.count(CUT, 0, place) for place in span] for span in spans]
        return [_overlapping(len(ids), begin, end, (first, last)) for first, last in moved]


def _overlapping(count: int, begin: Callable[[int], int], end: Callable[[int], int], span: Range) -> Range:
    """Return which of `count` tokens, with these first characters and ends, hold characters of a span."""
    first = bisect_right(range(count), span[0], key=end)
    last = bisect_left(range(count), span[1], key=begin) if span[0] < span[1] else first
    return first, max(first, last)
