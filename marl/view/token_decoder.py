"""Decoding of recorded token ids with the tokenizers in a run's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from marl.runs.checkpoint import checkpoint_steps
from marl.runs.run_folder import RunFolder
from marl.runs.symlinks import path_within

_LARGEST_FILE = 2**26
"""Size limit of a tokenizer file [bytes]."""
_load_tokenizer = lru_cache(maxsize=8)(Tokenizer.from_file)
"""Function that returns the tokenizer in a file, cached for all runs."""


class TokenDecoder:
    """Decoder for the tokens of a run's policies. A policy without a saved tokenizer cannot be decoded."""

    def __init__(self, home: RunFolder) -> None:
        self._home = home
        self._tokenizers: dict[str, Tokenizer] = {}
        """Policy -> tokenizer. The tokenizer never changes during a run."""

    def decode_each_token(self, policy: str, token_ids: Sequence[int]) -> list[str] | None:
        """Return the text of each token, including special tokens, or None without a suitable tokenizer.

        A character of several tokens appears at its last token.
        """
        tokenizer = self._tokenizer_with_ids(policy, token_ids)
        if tokenizer is None:
            return None
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(tokenizer, token) or "" for token in token_ids]

    def decode(self, policy: str, token_ids: Sequence[int]) -> str | None:
        """Return the tokens as one text, including special tokens, or None without a suitable tokenizer."""
        tokenizer = self._tokenizer_with_ids(policy, token_ids)
        return None if tokenizer is None else tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def _tokenizer_with_ids(self, policy: str, token_ids: Sequence[int]) -> Tokenizer | None:
        """Return the policy's tokenizer, or None if it is missing or its vocabulary lacks one of `token_ids`."""
        # NAME@STEP is an earlier version of policy NAME and has the same tokenizer.
        name = policy.partition("@")[0]
        # The name comes from a recorded file and becomes part of a path, so it must be one component.
        if name not in self._tokenizers and "/" not in name:
            # The newest checkpoint with a tokenizer.json is used.
            for step in reversed(checkpoint_steps(self._home.checkpoints)):
                file = path_within(self._home.path, "checkpoints", f"{step:06d}", "policies", name, "tokenizer.json")
                if file.is_file() and file.stat().st_size <= _LARGEST_FILE:
                    self._tokenizers[name] = _load_tokenizer(str(file))
                    break
        tokenizer = self._tokenizers.get(name)
        if tokenizer is None or (token_ids and not 0 <= min(token_ids) <= max(token_ids) < tokenizer.get_vocab_size()):
            return None
        return tokenizer
