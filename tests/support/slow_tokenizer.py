"""A tokenizer in Python, which does not say where its tokens stand in a text."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizer


class SlowBytes(PreTrainedTokenizer):
    """One token a byte, and the end of a turn."""

    def __init__(self, *, lowers: bool = False, **settings: Any) -> None:
        """`lowers`: capitals become small letters, so that tokens do not spell the text."""
        self._lowers = lowers
        super().__init__(eos_token="<eos>", **settings)
        self.chat_template = "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"

    @property
    def vocab_size(self) -> int:
        """Return the number of bytes."""
        return 256

    def get_vocab(self) -> dict[str, int]:
        """Return token -> its id; a byte is written as the character with its code."""
        return {chr(code): code for code in range(256)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **settings: Any) -> list[str]:
        return [chr(byte) for byte in (text.lower() if self._lowers else text).encode()]

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Return the text that bytes spell."""
        return b"".join(t.encode("latin-1" if len(t) == 1 else "utf-8") for t in tokens).decode(errors="replace")
