"""Escaping of chat markup in contents of messages, so that no content can begin or end a turn.

A chat template writes contents and markup into one text, which is tokenized as a whole. Without escaping, a content
that spells `<|im_end|>\\n<|im_start|>assistant` in ordinary characters would become a real turn in a prompt.

- Markup in control tokens: the content is cut after the first character of the markup, and the pieces of the rendered
  text are tokenized one by one. The model reads the same characters in ordinary tokens.
- Markup in ordinary text (`[INST]`, `### Assistant:`) has no second tokenization. The markup is found by rendering a
  probe conversation, and gets a backslash after its first character: `[\\/INST]`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any

from tokenizers import NormalizedString

from marl.core.types import Message
from marl.host.outside import replace_surrogates
from marl.models.text_markers import NONCHARACTERS, TextMarker, extract_markers
from marl.models.token_spans import CUT_CHARACTER, TokenizedPiece, TokenizedText

PLACEHOLDER_ANSWER = "THE-EARLIER-ANSWER\ufdd1"
"""An answer that no content can spell, because the noncharacter U+FDD1 is replaced in contents."""
_ANSWER_TAG = re.compile(r"[<\[]/?(?:[\w:]*think(?:ing)?|tool_call)[>\]]", re.IGNORECASE)
"""Tags within answers. Templates search contents for these tags, so they must stay as they are."""
_NAMED = re.compile(r"(?=.*[^\W\d_])(?=.*[^\w\s])", re.DOTALL)
_BRACKETED = re.compile(r"<+[^<>\s]+>+|\[[^\[\]\s]+\]")
_PROBES = ("marl-probe-0", "marl-probe-1", "marl-probe-2", "marl-probe-3")
_SPEAKERS = (("system", "user", "assistant", "user"), ("user", "assistant", "user"))
Render = Callable[[list[Message]], str]
"""Render messages by the chat template, with the beginning of an answer; ValueError if the template refuses them."""


class MarkupEscaper:
    """Escaper for the markup of one tokenizer and its chat template, which is found on first use."""

    def __init__(self, tokenizer: Any, render: Render) -> None:
        self._tokenizer, self._render = tokenizer, render

    def escape(self, content: str) -> str:
        """Return `content` with the chat markup escaped, so that the template renders it as text."""
        content = self.with_cuts(content)
        return self._escaped_at.sub(r"\g<0>\\", content) if self._text_mark.search(content) else content

    def moved_markers(self, content: str, escaped: str) -> list[TextMarker]:
        """Return the markers in `content`, with their positions in `escaped`, the escaped content without markers.

        Markers with even numbers begin a span, markers with odd numbers end a span.
        """
        content, markers = extract_markers(content)
        if escaped == content:
            return markers
        read = self._normalize_if_marked(content)
        if read != replace_surrogates(content):
            markers = [_normalized_marker(marker, content, self._normalizer) for marker in markers]
        # Escaping inserts characters and changes none, so that every character of `read` follows in `escaped`.
        characters = iter(enumerate(escaped))
        positions = [next(index for index, other in characters if other == character) for character in read]
        begins, ends = [*positions, len(escaped)], [0, *(index + 1 for index in positions)]
        moved: list[TextMarker] = []
        for position, number in markers:
            moved.append(TextMarker((ends if number % 2 else begins)[position], number))
        return moved

    def with_cuts(self, text: str) -> str:
        """Return `text` with a cut in every control token, so that `ids` gives ordinary tokens."""
        text = self._normalize_if_marked(text)
        return self._cut_at.sub(rf"\g<0>{CUT_CHARACTER}", text) if self._token_mark.search(text) else text

    def _normalize_if_marked(self, text: str) -> str:
        """Return `text` as valid Unicode, and normalized if the tokenizer's normalizer creates a control token."""
        text = text if text.isascii() else NONCHARACTERS.sub("\ufffd", replace_surrogates(text))
        if self._token_mark.search(text):
            return text
        if self._normalizer is None:
            return text
        normalized = self._normalizer.normalize_str(text)
        return normalized if self._token_mark.search(normalized) else text

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a rendered text, or of a text with cuts, without adding special tokens."""
        return self.tokenized(text).ids

    def tokenized(self, text: str) -> TokenizedText:
        """Return the tokens of a rendered text, or of a text with cuts, with their positions."""
        pieces = self._tokenize_pieces(text) if CUT_CHARACTER in text else [TokenizedPiece(*self._batch([text])[0])]
        return TokenizedText(text, pieces, self._tokenizer, trimmed=self._trims_blanks)

    def _tokenize_pieces(self, text: str) -> list[TokenizedPiece]:
        first, *later = text.split(CUT_CHARACTER)
        # A line feed before each piece: SentencePiece puts a blank before a text that begins with anything else.
        (feed, _), (begin, encoding), *after_feed = self._batch(["\n", first, *(f"\n{piece}" for piece in later)])
        pieces, start = [TokenizedPiece(begin, encoding)], len(first) + 1
        for piece, (ids, encoding), alone in zip(later, after_feed, self._batch(later), strict=True):
            if ids[: len(feed)] == feed:
                pieces.append(TokenizedPiece(ids[len(feed) :], encoding, start, 1))
            else:  # the line feed was merged with the piece
                pieces.append(TokenizedPiece(*alone, start))
            start += len(piece) + 1
        return pieces

    def framed_ids(self, text: str) -> list[int]:
        """Return the token ids of a text with cuts, between the special tokens that the tokenizer puts around texts."""
        if CUT_CHARACTER not in text:
            return list(self._tokenizer(text).input_ids)
        frame = list(self._tokenizer("").input_ids)
        # The frame of an empty text does not say which of its tokens come first.
        begins = frame[:1] in ([self._tokenizer.bos_token_id], [self._tokenizer.cls_token_id])
        return frame[:begins] + self.ids(text) + frame[begins:]

    def _batch(self, texts: list[str]) -> list[tuple[list[int], Any]]:
        """Return (token ids, encoding) of each text; the encoding is None for a slow tokenizer."""
        read = self._tokenizer(texts, add_special_tokens=False)
        return list(zip(read.input_ids, read.encodings or [None] * len(texts), strict=True))

    @cached_property
    def _trims_blanks(self) -> bool:
        """True if offsets leave out the blank at the start of a token, as with GPT-2 and Llama 3."""
        if not self._tokenizer.is_fast:
            return False
        (ids, encoding) = self._batch(["x x"])[0]
        blank_is_left_out = not any(begin <= 1 < end for begin, end in encoding.offsets)
        return blank_is_left_out and self._tokenizer.decode(ids[-1:])[:1] == " "

    # --- markup in control tokens -------------------------------------------------------------------------------------

    @cached_property
    def _tokens(self) -> frozenset[str]:
        """Control tokens: special tokens, and added tokens that the template writes."""
        template, added = str(self._tokenizer.chat_template), self._tokenizer.added_tokens_decoder.values()
        tokens = set(self._tokenizer.all_special_tokens)
        for token in added:
            if token.special or (token.content in template and _is_mark(token.content)):
                tokens.add(token.content)
        # A single character cannot be cut, and is an ordinary word of the vocabulary, too.
        return frozenset(token for token in tokens if len(token) > 1)

    @cached_property
    def _token_mark(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._tokens))

    @cached_property
    def _cut_at(self) -> re.Pattern[str]:
        return re.compile(f"(?={_any_of(self._tokens)}).", re.DOTALL)

    @cached_property
    def _normalizer(self) -> Any:
        return self._tokenizer.backend_tokenizer.normalizer if self._tokenizer.is_fast else None

    # --- markup in ordinary text --------------------------------------------------------------------------------------

    @cached_property
    def _text_mark(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._texts))

    @cached_property
    def _escaped_at(self) -> re.Pattern[str]:
        # Not within a word: `A:` is no markup in `PANDA:`.
        return re.compile(rf"(?:(?<!\w)|(?=\W))(?={_any_of(self._texts)}).")

    @cached_property
    def _texts(self) -> frozenset[str]:
        if self._tokenizer.chat_template is None:
            return frozenset()
        texts = set[str]()
        for speakers in _SPEAKERS:
            for gap in self._gaps(speakers):
                for line in map(str.strip, gap.split("\n")):
                    # Bracketed texts are the markup of a line; a line without brackets is markup as a whole.
                    texts.update(filter(_is_mark, _BRACKETED.findall(line) or [line]))
        return frozenset(texts)

    def _gaps(self, speakers: tuple[str, ...]) -> Iterator[str]:
        """Yield the texts that the template writes before, between and after contents and added tokens."""
        messages = [Message(speaker, probe) for speaker, probe in zip(speakers, _PROBES, strict=False)]  # type: ignore[arg-type]
        try:
            text = self._render(messages)
        except ValueError:
            return  # the template refuses a conversation of these speakers
        added = (token.content for token in self._tokenizer.added_tokens_decoder.values())
        yield from re.split(_any_of({*_PROBES, *self._tokens, *added}), text)


def _normalized_marker(marker: TextMarker, content: str, normalizer: Any) -> TextMarker:
    """Return `marker` of `content` with its position in the normalized content."""
    text = NormalizedString(content)
    normalizer.normalize(text)
    count, is_end = len(text.normalized), marker.number % 2

    def original_length(length: int) -> int:
        """Return the number of characters of `content` behind the first `length` normalized characters."""
        prefix = text[:length]
        return len(prefix.original) if length and prefix else 0

    # A span begins with the first character that ends after the marker, and ends with the last that begins before it.
    lengths = range(count) if is_end else range(1, count + 1)
    return TextMarker(bisect_right(lengths, marker.position - is_end, key=original_length), marker.number)


def _any_of(texts: Collection[str]) -> str:
    """Return a pattern of the longest matching text of `texts`; without texts, a pattern that never matches."""
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})"


def _is_mark(text: str) -> bool:
    """Return True if a text of a template looks like markup: it has a letter and a punctuation mark."""
    return bool(_NAMED.match(text)) and not _ANSWER_TAG.fullmatch(text)
