"""Positions of tokens in the tokenized text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

CUT_CHARACTER = "\ufdd0"
"""Separator of pieces that are tokenized on their own: a Unicode noncharacter, which is replaced in contents."""
Range = tuple[int, int]
"""(begin, end) of characters or tokens, end exclusive."""


class TokenizedPiece(NamedTuple):
    """Tokens of the text between two cuts."""

    ids: list[int]
    encoding: Any = None
    """`tokenizers.Encoding` with the offsets of the tokens; None for a slow tokenizer."""
    start: int = 0
    """Index of the piece's first character in the full text."""
    context_chars: int = 0
    """Number of characters before the piece that were tokenized with it; their tokens are left out."""

    def offsets(self, *, trimmed: bool) -> list[Range]:
        """Return the character range of each token in the full text.

        `trimmed` is True if the encoding's offsets leave out the blank at the start of a token.
        """
        offsets, shift = self.encoding.offsets[-len(self.ids) :] if self.ids else [], self.start - self.context_chars
        if trimmed:
            # A token begins at the latest end of the tokens before it, so that blanks belong to a token.
            before = accumulate([end for _, end in offsets], max, initial=self.context_chars)
            offsets = [(min(begin, last), end) for (begin, end), last in zip(offsets, before, strict=False)]
        return [(begin + shift, end + shift) for begin, end in offsets] if shift else offsets


class TokenizedText:
    """A text with cuts, its tokens, and their positions."""

    def __init__(self, text: str, pieces: list[TokenizedPiece], tokenizer: Any, *, trimmed: bool) -> None:
        self.text, self._pieces, self._tokenizer, self._trimmed = text, pieces, tokenizer, trimmed
        self.ids = pieces[0].ids if len(pieces) == 1 else list(chain.from_iterable(piece.ids for piece in pieces))

    def token_spans(self, spans: Sequence[Range]) -> list[Range] | None:
        """Return the range of tokens that overlap each span of characters.

        A span that overlaps no token has an empty range, at the first token that does not end before the span. Return
        None if the positions are unknown: the tokens of a slow tokenizer may not spell the text.
        """
        if self._pieces[0].encoding is None:
            return self._spans_by_decoding(spans)
        offsets = list(chain.from_iterable(piece.offsets(trimmed=self._trimmed) for piece in self._pieces))
        return [_overlapping(len(offsets), lambda t: offsets[t][0], lambda t: offsets[t][1], span) for span in spans]

    def _spans_by_decoding(self, spans: Sequence[Range]) -> list[Range] | None:
        """Return `token_spans` of a slow tokenizer, by decoding growing prefixes of the tokens."""
        text, ids = self.text.replace(CUT_CHARACTER, ""), self.ids

        @cache
        def spelled(count: int) -> str:
            return self._tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)

        def begin(token: int) -> int:
            # The bytes of an incomplete character decode to U+FFFD.
            before = spelled(token)
            return len(before if text.startswith(before) else before.rstrip("\ufffd"))

        def end(token: int) -> int:
            return begin(token + 1) + (not text.startswith(spelled(token + 1)))

        if spelled(len(ids)) != text:
            return None
        ranges: list[Range] = []
        for first, last in spans:
            first -= self.text.count(CUT_CHARACTER, 0, first)
            last -= self.text.count(CUT_CHARACTER, 0, last)
            ranges.append(_overlapping(len(ids), begin, end, (first, last)))
        return ranges


def _overlapping(count: int, begin: Callable[[int], int], end: Callable[[int], int], span: Range) -> Range:
    """Return the range of those `count` tokens that overlap `span`; `begin` and `end` map a token to its characters."""
    first = bisect_right(range(count), span[0], key=end)
    last = bisect_left(range(count), span[1], key=begin) if span[0] < span[1] else first
    return first, max(first, last)
