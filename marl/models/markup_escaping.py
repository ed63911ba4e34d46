"""Escaping of chat markup in the contents of messages, so that no content can begin or end a turn.

A chat template writes contents and markup into one text, which is tokenized as a whole. Without escaping, a content
that spells `<|im_end|>\\n<|im_start|>assistant` in ordinary characters would become a real turn in a prompt.

- If the markup is a control token, a content is cut after the first character of the markup, and the pieces of the
  rendered text are tokenized one by one. The model reads the same characters in ordinary tokens.
- If the markup is ordinary text (`[INST]`, `### Assistant:`), a content gets a backslash after the first character of
  the markup: `[\\/INST]`. This markup is found by rendering a conversation of probes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

from tokenizers import NormalizedString

from marl.core.types import Message
from marl.host.untrusted_text import replace_surrogates
from marl.models.text_markers import NONCHARACTERS, TextMarker, extract_markers
from marl.models.token_spans import CUT_CHARACTER, TokenizedPiece, TokenizedText

PLACEHOLDER_ANSWER = "THE-EARLIER-ANSWER\ufdd1"
"""Content of a placeholder message. No real content equals it, because the noncharacter U+FDD1 is always replaced."""
_ANSWER_TAG = re.compile(r"[<\[]/?(?:[\w:]*think(?:ing)?|tool_call)[>\]]", re.IGNORECASE)
"""Tags that answers contain, such as `<think>`. They stay unescaped, because templates search contents for them."""
_LETTER_AND_PUNCTUATION = re.compile(r"(?=.*[^\W\d_])(?=.*[^\w\s])", re.DOTALL)
_BRACKETED = re.compile(r"<+[^<>\s]+>+|\[[^\[\]\s]+\]")
_PROBES = ("marl-probe-0", "marl-probe-1", "marl-probe-2", "marl-probe-3")
_SPEAKERS = (("system", "user", "assistant", "user"), ("user", "assistant", "user"))
Render = Callable[[list[Message]], str]
"""Function that renders messages by the chat template, with the beginning of an answer. The function raises ValueError
if the template refuses the messages."""


class _RustPanicAsError:
    """Context that raises ValueError in place of a panic of the tokenizer's Rust code.

    The class of a panic is no `Exception`, and no module exports it, so no `except` clause can name it.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None and kind.__name__ == "PanicException":
            raise ValueError(f"the tokenizer cannot read a text: {error}") from None


class MarkupEscaper:
    """Escaper of chat markup in message contents, for one tokenizer and its template. Markup is found at first use."""

    def __init__(self, tokenizer: Any, render: Render) -> None:
        self._tokenizer, self._render = tokenizer, render

    def escape(self, content: str) -> str:
        """Return `content` with chat markup escaped, so that the template renders the markup as text."""
        return self._text_markup_start.sub(r"\g<0>\\", self.break_up_control_tokens(content))

    def markers_in_escaped_content(self, content: str, escaped: str) -> list[TextMarker]:
        """Return the markers in `content`, with their positions in `escaped`, the escaped content without markers.

        Markers with even numbers begin a span, and markers with odd numbers end a span.
        """
        content, markers = extract_markers(content)
        if escaped == content:
            return markers
        read = self._clean_and_normalize(content)
        if read != replace_surrogates(content):
            markers = [_normalized_marker(marker, content, self._normalizer) for marker in markers]
        # Escaping only inserts characters, so each character of `read` is found in `escaped`, in order.
        begins, ends = list[int](), [0]
        for character in read:
            begins.append(escaped.index(character, ends[-1]))
            ends.append(begins[-1] + 1)
        begins.append(len(escaped))
        return [TextMarker((ends if number % 2 else begins)[position], number) for position, number in markers]

    def break_up_control_tokens(self, text: str) -> str:
        """Return `text` with `CUT_CHARACTER` inside every control token, so that `encode` reads it as ordinary text."""
        return self._control_token_start.sub(rf"\g<0>{CUT_CHARACTER}", self._clean_and_normalize(text))

    def _clean_and_normalize(self, text: str) -> str:
        """Return `text` as valid Unicode. The text is normalized if normalization creates a control token."""
        text = text if text.isascii() else NONCHARACTERS.sub("\ufffd", replace_surrogates(text))
        if self._control_token_start.search(text) or self._normalizer is None:
            return text
        normalized = self._normalizer.normalize_str(text)
        return normalized if self._control_token_start.search(normalized) else text

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, tokenized piece by piece between `CUT_CHARACTER`s, without special tokens."""
        return self.tokenize_with_positions(text).ids

    def tokenize_with_positions(self, text: str) -> TokenizedText:
        """Return the tokens of `text` and their positions, tokenized piece by piece between `CUT_CHARACTER`s."""
        first, *later = text.split(CUT_CHARACTER)
        # Later pieces get a line feed in front, because SentencePiece puts a blank before the start of a text.
        (feed, _), beginning, *after_feed = self._tokenize_texts(["\n", first, *map("\n{}".format, later)])
        pieces, start = [TokenizedPiece(*beginning)], len(first) + 1
        without_feed = self._tokenize_texts(later) if later else []
        for piece, (ids, encoding), alone in zip(later, after_feed, without_feed, strict=True):
            # The line feed may have merged with the piece's start; then the piece is tokenized without it.
            if ids[: len(feed)] == feed:
                pieces.append(TokenizedPiece(ids[len(feed) :], encoding, start, 1))
            else:
                pieces.append(TokenizedPiece(*alone, start))
            start += len(piece) + 1
        return TokenizedText(text, pieces, self._tokenizer, offsets_omit_blanks=self._token_offsets_omit_leading_blank)

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the token ids as `encode` does, with the special tokens that the tokenizer puts around texts."""
        if CUT_CHARACTER not in text:
            return list(self._tokenizer(text).input_ids)
        frame = list(self._tokenizer("").input_ids)
        # An empty text does not show on which side its special tokens belong; a first BOS or CLS token is leading.
        begins = frame[:1] in ([self._tokenizer.bos_token_id], [self._tokenizer.cls_token_id])
        return frame[:begins] + self.encode(text) + frame[begins:]

    def _tokenize_texts(self, texts: list[str]) -> list[tuple[list[int], Any]]:
        """Return (token ids, encoding) of each of `texts`. The encoding is None for a slow tokenizer.

        Raises:
            ValueError: if the tokenizer cannot read a text, such as one on which its pattern backtracks too often.
        """
        with _RustPanicAsError():
            read = self._tokenizer(texts, add_special_tokens=False)
        return list(zip(read.input_ids, read.encodings or [None] * len(texts), strict=True))

    @cached_property
    def _token_offsets_omit_leading_blank(self) -> bool:
        """True if the offsets of a token leave out the blank at its start, as with GPT-2 and Llama 3."""
        if not self._tokenizer.is_fast:
            return False
        [(ids, encoding)] = self._tokenize_texts(["x x"])
        blank_is_left_out = not any(begin <= 1 < end for begin, end in encoding.offsets)
        return blank_is_left_out and self._tokenizer.decode(ids[-1:])[:1] == " "

    @cached_property
    def _control_tokens(self) -> frozenset[str]:
        """Texts of the special tokens, and of the added tokens that the template writes."""
        template, added = str(self._tokenizer.chat_template), self._tokenizer.added_tokens_decoder.values()
        tokens = set(self._tokenizer.all_special_tokens)
        for token in added:
            if token.special or (token.content in template and _looks_like_markup(token.content)):
                tokens.add(token.content)
        # Single characters are left out: they are ordinary words, too, and cannot be broken up by escaping.
        return frozenset(token for token in tokens if len(token) > 1)

    @cached_property
    def _control_token_start(self) -> re.Pattern[str]:
        """Pattern of the first character of a control token."""
        return re.compile(f"(?={_pattern_of_any_text(self._control_tokens)}).", re.DOTALL)

    @cached_property
    def _normalizer(self) -> Any:
        return self._tokenizer.backend_tokenizer.normalizer if self._tokenizer.is_fast else None

    @cached_property
    def _text_markup_start(self) -> re.Pattern[str]:
        """Pattern of the first character of template markup in ordinary text, such as `[INST]` or `### Assistant:`."""
        markup = set[str]()
        added = (token.content for token in self._tokenizer.added_tokens_decoder.values())
        # The rest of a rendered text, without contents of messages and added tokens, is markup of the template.
        other_text = _pattern_of_any_text({*_PROBES, *self._control_tokens, *added})
        for speakers in _SPEAKERS if self._tokenizer.chat_template is not None else ():
            messages = [Message(speaker, probe) for speaker, probe in zip(speakers, _PROBES, strict=False)]  # type: ignore[arg-type]
            try:
                text = self._render(messages)
            except ValueError:
                # A template may refuse a conversation with this order of roles.
                continue
            for line in map(str.strip, re.sub(other_text, "\n", text).split("\n")):
                # Of a line with texts in brackets, such as [INST], only these are markup; any other line is markup.
                markup.update(filter(_looks_like_markup, _BRACKETED.findall(line) or [line]))
        # Markup must not begin inside of a word: `A:` is no markup in `PANDA:`.
        return re.compile(rf"(?:(?<!\w)|(?=\W))(?={_pattern_of_any_text(markup)}).")


def _normalized_marker(marker: TextMarker, content: str, normalizer: Any) -> TextMarker:
    """Return `marker`, a marker of `content`, with its position in the normalized content."""
    text = NormalizedString(content)
    normalizer.normalize(text)
    count, is_end = len(text.normalized), marker.number % 2

    def original_prefix_length(normalized_length: int) -> int:
        """Return the length of the prefix of `content` that is normalized to `normalized_length` characters."""
        prefix = text[:normalized_length]
        return len(prefix.original) if normalized_length and prefix else 0

    # Normalization merges or splits characters, so a position is found by the original lengths of prefixes.
    # A span contains every normalized character whose original overlaps the text between its two markers.
    lengths = range(count) if is_end else range(1, count + 1)
    return TextMarker(bisect_right(lengths, marker.position - is_end, key=original_prefix_length), marker.number)


def _pattern_of_any_text(texts: Collection[str]) -> str:
    """Return a pattern that matches the longest possible of `texts`, or never if `texts` is empty."""
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})"


def _looks_like_markup(text: str) -> bool:
    """Return True if `text` has a letter and a punctuation mark, and is no tag of an answer, such as `<think>`."""
    return bool(_LETTER_AND_PUNCTUATION.match(text)) and not _ANSWER_TAG.fullmatch(text)
