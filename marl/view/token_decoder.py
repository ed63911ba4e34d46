"""Decoding of recorded token ids with the tokenizers in a run's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from marl.runs.checkpoint import checkpoint_steps
from marl.runs.run_folder import RunFolder
from marl.runs.symlinks import path_within

_LARGEST_FILE = 2**26
"""Size limit of a tokenizer file [bytes]."""


class TokenDecoder:
    """Decoder for the tokens of a run's policies. A policy without a saved tokenizer cannot be decoded."""

    def __init__(self, home: RunFolder) -> None:
        self._home = home
        self._known: dict[str, Tokenizer] = {}
        """Policy -> tokenizer. The tokenizer never changes during a run."""

    def decode_each(self, policy: str, ids: Sequence[int]) -> list[str] | None:
        """Return the text of each token, including special tokens, or None without a suitable tokenizer.

        A character of several tokens appears at its last token.
        """
        tokenizer = self._tokenizer_of(policy, ids)
        if tokenizer is None:
            return None
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in ids]

    def decode(self, policy: str, ids: Sequence[int]) -> str | None:
        """Return the tokens as one text, including special tokens, or None without a suitable tokenizer."""
        tokenizer = self._tokenizer_of(policy, ids)
        return None if tokenizer is None else tokenizer.decode(list(ids), skip_special_tokens=False)

    def _tokenizer_of(self, policy: str, ids: Sequence[int]) -> Tokenizer | None:
        """Return the policy's tokenizer, or None if it is missing or its vocabulary lacks one of `ids`."""
        # Earlier versions of a policy are called NAME@STEP and share its tokenizer.
        name = policy.partition("@")[0]
        tokenizer = self._known.get(name) or self._saved(name)
        if tokenizer is None:
            return None
        self._known[name] = tokenizer
        covered = not ids or 0 <= min(ids) <= max(ids) < tokenizer.get_vocab_size()
        return tokenizer if covered else None

    def _saved(self, name: str) -> Tokenizer | None:
        """Return the tokenizer from the newest checkpoint with one, or None."""
        # The name comes from a recorded file and becomes part of a path.
        if "/" in name:
            return None
        for step in reversed(checkpoint_steps(self._home.checkpoints)):
            file = path_within(self._home.path, "checkpoints", f"{step:06d}", "policies", name, "tokenizer.json")
            if file.is_file() and file.stat().st_size <= _LARGEST_FILE:
                return _read(file)
        return None


@lru_cache(maxsize=8)
def _read(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))
