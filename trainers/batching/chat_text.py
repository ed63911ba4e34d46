"""What a reward model reads of a turn: the tokens of its chat template, for the very text that was said."""

from __future__ import annotations

from typing import Any

from marl.models.chat_template import Prompts
from marl.types import Message, Sample

Ids = tuple[int, ...]
_ASKED, _SAID = "What is right?", "THE-ANSWER"


class Wording:
    """Sampled tokens -> those that the chat template makes of the same answer, after the same prompt.

    A reward model is later given a conversation in words. So it learns from words, too: the sampled tokens are decoded,
    cut at a stop text, put between what the template writes before and after an answer, and encoded anew. An answer
    that broke off before its end token gets one; one that was spelled in unusual tokens is respelled.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises:
        ValueError: if the template writes a conversation whose beginning is not the prompt for its answer.
        """
        self._tokenizer = tokenizer
        self._text = Prompts(tokenizer, frozenset()).text
        self._before, self._after = self._around()

    def __call__(self, sample: Sample) -> Ids:
        """What follows the prompt of `sample`, at whose last token it is rated."""
        text = self._text(sample.token_ids)
        ends = [place for stop in sample.sampling.stop if (place := text.find(stop)) >= 0]
        return self._ids(text[: min(ends, default=len(text))])

    def _ids(self, text: str) -> Ids:
        return tuple(self._tokenizer(f"{self._before}{text}{self._after}", add_special_tokens=False).input_ids)

    def _around(self) -> tuple[str, str]:
        """What the template writes between the prompt and an answer, and after it."""
        if self._tokenizer.chat_template is None:
            return "", ""
        asked, said = Message("user", _ASKED), Message("assistant", _SAID)
        prompt = self._tokenizer.apply_chat_template([asked._asdict()], add_generation_prompt=True, tokenize=False)
        whole = self._tokenizer.apply_chat_template([asked._asdict(), said._asdict()], tokenize=False)
        before, found, after = whole.removeprefix(prompt).partition(_SAID)
        if not whole.startswith(prompt) or not found:
            raise ValueError(
                f"the chat template writes {whole!r}, which does not begin with the prompt for the answer, {prompt!r}: "
                "a reward model would learn from other texts than it is asked about"
            )
        return before, after
