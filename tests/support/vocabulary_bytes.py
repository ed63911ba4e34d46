"""The bytes that tokens stand for, read from a vocabulary without its decoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}


class TokenBytes:
    """The bytes of each token of a byte-level vocabulary, or of one of SentencePiece's."""

    def __init__(self, tokenizer: Any) -> None:
        vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
        self.has_pieces = "<0x41>" in vocabulary
        self._bytes = {
            token: spelled.encode() if token in added else self._read(spelled) for spelled, token in vocabulary.items()
        }

    def _read(self, spelled: str) -> bytes:
        if not self.has_pieces:
            return bytes(_BYTES[letter] for letter in spelled)
        if re.fullmatch(r"<0x[0-9A-F]{2}>", spelled):
            return bytes([int(spelled[3:5], 16)])
        return spelled.replace("▁", " ").encode()

    def text(self, ids: Sequence[int]) -> bytes:
        """Return all that tokens spell."""
        return b"".join(self._bytes[token] for token in ids)

    def holders(self, ids: Sequence[int], first: int, last: int) -> tuple[int, int]:
        """Return the range of the tokens that hold one of the bytes `first` to `last` of what all spell."""
        borders = [*accumulate((len(self._bytes[token]) for token in ids), initial=0)]
        held = [token for token, (low, high) in enumerate(pairwise(borders)) if low < last and first < high]
        return held[0], held[-1] + 1
