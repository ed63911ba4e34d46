"""Texts of recorded tokens, by the tokenizers that a run's checkpoints hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from marl.runs.checkpoint import steps
from marl.runs.links import inside
from marl.runs.run_folder import RunFolder

_LARGEST_FILE = 2**26
"""Most bytes of a tokenizer's file."""


class TokenTexts:
    """Texts of the tokens of a run's policies; a policy that no checkpoint has saved with its tokenizer has none."""

    def __init__(self, home: RunFolder) -> None:
        self._home = home
        self._known: dict[str, Tokenizer] = {}
        """Policy -> its tokenizer, which stays the same throughout a run."""

    def pieces(self, policy: str, ids: Sequence[int]) -> list[str] | None:
        """Return the text of each token, special ones included; None if the policy's tokenizer is not at hand.

        A character that several tokens spell stands at the last of them.
        """
        tokenizer = self._tokenizer_of(policy, ids)
        if tokenizer is None:
            return None
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in ids]

    def text(self, policy: str, ids: Sequence[int]) -> str | None:
        """Return tokens as one text, special ones included; None as for `pieces`."""
        tokenizer = self._tokenizer_of(policy, ids)
        return None if tokenizer is None else tokenizer.decode(list(ids), skip_special_tokens=False)

    def _tokenizer_of(self, policy: str, ids: Sequence[int]) -> Tokenizer | None:
        """Return a policy's tokenizer; None if it is not at hand, or knows not all of these tokens."""
        name = policy.partition("@")[0]
        tokenizer = self._known.get(name) or self._saved(name)
        if tokenizer is None:
            return None
        self._known[name] = tokenizer
        known = not ids or 0 <= min(ids) <= max(ids) < tokenizer.get_vocab_size()
        return tokenizer if known else None

    def _saved(self, name: str) -> Tokenizer | None:
        """Return the tokenizer that the newest checkpoint with one holds."""
        if "/" in name:
            return None
        for step in reversed(steps(self._home.checkpoints)):
            file = inside(self._home.path, "checkpoints", f"{step:06d}", "policies", name, "tokenizer.json")
            if file.is_file() and file.stat().st_size <= _LARGEST_FILE:
                return _read(file)
        return None


@lru_cache(maxsize=8)
def _read(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))
