"""Conversion of sampled answers to the chat template's text, which a reward model reads."""

from typing import Any

from marl.core.types import Message, Sample
from marl.models.bounded_chat_template import render_chat_template
from marl.models.chat_template import ChatTokenizer
from marl.models.segment_tokens import escaped_spans, last_tokens_of_spans

_QUESTION, _ANSWER = "What is right?", "THE-ANSWER"


class ChatAnswerEncoder:
    """Function from a sample to its answer in the tokens of the chat template, as they follow the sample's prompt.

    A reward model is used on text, so it also learns from text. Sampled tokens are decoded, cut at a stop text, put
    between the template's texts before and after an answer, and encoded again. So every answer has an end token, and
    is tokenised in the usual way.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Raise ValueError if a conversation in the tokenizer's chat template does not begin with its prompt."""
        self._chat = ChatTokenizer(tokenizer, frozenset())
        self._before, self._after = "", ""
        if tokenizer.chat_template is None:
            return
        messages = [Message("user", _QUESTION).to_dict(), Message("assistant", _ANSWER).to_dict()]
        prompt = render_chat_template(tokenizer, messages[:1])
        conversation = render_chat_template(tokenizer, messages, ends_with_answer=True)
        self._before, answer, self._after = conversation.removeprefix(prompt).partition(_ANSWER)
        if not conversation.startswith(prompt) or not answer:
            raise ValueError(
                f"the chat template writes {conversation!r}, which does not begin with the prompt for the answer, "
                f"{prompt!r}: a reward model would learn from other texts than it is later given"
            )

    def __call__(self, sample: Sample) -> tuple[int, ...]:
        """Return the token ids of the sample's answer behind its prompt; the score is computed at the last token."""
        escaper = self._chat.escaper
        return tuple(escaper.encode(f"{self._before}{escaper.escape(self._text(sample))}{self._after}"))

    def with_last_tokens_of_segments(self, sample: Sample) -> tuple[tuple[int, ...], list[int]]:
        """Return the token ids of the sample's answer, and the index of the last token of each of its segments."""
        escaper, text = self._chat.escaper, self._text(sample)
        offsets: list[int] = []
        for last in sample.segments:
            # An incomplete character at the end decodes to U+FFFD, and ends with a later token.
            decoded = self._chat.text(sample.token_ids[: last + 1]).rstrip("\ufffd")
            offsets.append(min(len(decoded), len(text)))
        offsets[-1] = len(text)
        escaped = escaper.escape(text)
        shift = len(self._before)
        spans = [(shift + begin, shift + end) for begin, end in escaped_spans(self._chat, text, escaped, offsets)]
        tokens = escaper.tokenize_with_positions(f"{self._before}{escaped}{self._after}")
        return tuple(tokens.ids), last_tokens_of_spans(tokens, spans)

    def _text(self, sample: Sample) -> str:
        """Return the sample's answer, cut at a stop text."""
        text = self._chat.text(sample.token_ids)
        stops = [text.find(stop) for stop in sample.sampling.stop]
        return text[: min((stop for stop in stops if stop >= 0), default=len(text))]
