"""Answers as the text of the chat template, which a reward model reads."""

from typing import Any

from marl.core.types import Message, Sample
from marl.models.chat_template import ChatTokenizer

_QUESTION, _ANSWER = "What is right?", "THE-ANSWER"


class ChatTextEncoder:
    """Function from a sample to the tokens that the chat template writes for the same answer, after the same prompt.

    A reward model is later given a conversation in words, so it also learns from words: the sampled tokens are decoded,
    cut at a stop text, put between the texts that the template writes before and after an answer, and encoded again. An
    answer that was cut off before its end token gets an end token; an answer in unusual tokens is tokenised in the
    usual way.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raises:
        ValueError: if the template writes a conversation whose beginning is not the prompt for its answer.
        """
        self._chat = ChatTokenizer(tokenizer, frozenset())
        self._before, self._after = "", ""
        if tokenizer.chat_template is None:
            return
        messages = [Message("user", _QUESTION)._asdict(), Message("assistant", _ANSWER)._asdict()]
        prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
        conversation = tokenizer.apply_chat_template(messages, tokenize=False)
        self._before, answer, self._after = conversation.removeprefix(prompt).partition(_ANSWER)
        if not conversation.startswith(prompt) or not answer:
            raise ValueError(
                f"the chat template writes {conversation!r}, which does not begin with the prompt for the answer, "
                f"{prompt!r}: a reward model would learn from other texts than it is later given"
            )

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """Return the ids after the prompt of `sample`; the score is read at the last of them."""
        text = self._chat.text(sample.token_ids)
        stops = [text.find(stop) for stop in sample.sampling.stop]
        text = text[: min((stop for stop in stops if stop >= 0), default=len(text))]
        escaper = self._chat.escaper
        return tuple(escaper.ids(f"{self._before}{escaper.escape(text)}{self._after}"))
