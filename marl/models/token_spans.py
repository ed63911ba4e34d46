"""Conversion of character spans of a text to spans of its tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

CUT_CHARACTER = "\ufdd0"
"""Separator of pieces that are tokenized one by one: a Unicode noncharacter, which no content has."""
Range = tuple[int, int]
"""(begin, end) of characters or tokens, end exclusive."""


class TokenizedPiece(NamedTuple):
    """Tokens of a piece of a text, which is tokenized without the other pieces."""

    ids: list[int]
    encoding: Any = None
    """`tokenizers.Encoding` with the offsets of the tokens, or None for a slow tokenizer."""
    start: int = 0
    """Index of the piece's first character in the full text."""
    context_chars: int = 0
    """Number of characters that were tokenized before the piece as context. Tokens of these characters are left out."""


class TokenizedText:
    """A text that was tokenized in pieces, with its tokens and their positions."""

    def __init__(self, text: str, pieces: list[TokenizedPiece], tokenizer: Any, *, offsets_omit_blanks: bool) -> None:
        """`offsets_omit_blanks`: True if the offsets of the tokenizer's encodings leave out the blank at the start of a
        token."""
        self.text, self._pieces, self._tokenizer, self._trimmed = text, pieces, tokenizer, offsets_omit_blanks
        self.ids = pieces[0].ids if len(pieces) == 1 else list(chain.from_iterable(piece.ids for piece in pieces))

    def token_spans(self, spans: Sequence[Range]) -> list[Range] | None:
        """Return, for each span of characters in the text, the range of the tokens that overlap the span.

        A span that overlaps no token has an empty range, at the first token that does not end before the span. The
        result is None if the positions are unknown, because the tokens of a slow tokenizer do not decode to the text.
        """
        if self._pieces[0].encoding is None:
            return self._spans_by_decoding(spans)
        begins, ends = list[int](), list[int]()
        for piece in self._pieces:
            shift, last = piece.start - piece.context_chars, piece.start
            for begin, end in piece.encoding.offsets[-len(piece.ids) :] if piece.ids else ():
                # Some tokenizers' offsets leave out blanks; then a token begins where its predecessor ends.
                begins.append(min(begin + shift, last) if self._trimmed else begin + shift)
                ends.append(end + shift)
                last = max(last, end + shift)
        return [_overlapping_tokens(len(ends), begins.__getitem__, ends.__getitem__, span) for span in spans]

    def _spans_by_decoding(self, spans: Sequence[Range]) -> list[Range] | None:
        """Return the result of `token_spans` for a slow tokenizer, by decoding growing prefixes of the tokens."""
        text, ids = self.text.replace(CUT_CHARACTER, ""), self.ids

        @cache
        def decode_prefix(token_count: int) -> str:
            options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
            return self._tokenizer.decode(ids[:token_count], **options)

        def token_begin(token: int) -> int:
            # An incomplete character at the end decodes to U+FFFD, which is removed.
            before = decode_prefix(token)
            return len(before if text.startswith(before) else before.rstrip("\ufffd"))

        def token_end(token: int) -> int:
            return token_begin(token + 1) + (not text.startswith(decode_prefix(token + 1)))

        if decode_prefix(len(ids)) != text:
            return None
        ranges: list[Range] = []
        for first, last in spans:
            first -= self.text.count(CUT_CHARACTER, 0, first)
            last -= self.text.count(CUT_CHARACTER, 0, last)
            ranges.append(_overlapping_tokens(len(ids), token_begin, token_end, (first, last)))
        return ranges


def _overlapping_tokens(
    token_count: int, token_begin: Callable[[int], int], token_end: Callable[[int], int], char_span: Range
) -> Range:
    """Return the range of the tokens [0, `token_count`) that overlap the characters `char_span`.

    `token_begin` and `token_end` map a token's index to the positions of its first character and after its last one.
    """
    first = bisect_right(range(token_count), char_span[0], key=token_end)
    last = bisect_left(range(token_count), char_span[1], key=token_begin) if char_span[0] < char_span[1] else first
    return first, max(first, last)
