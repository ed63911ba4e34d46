"""Contents of messages that spell the marks of a chat: they stay text, and never become a turn.

A chat template writes contents and the marks of turns into one text, which is tokenised as a whole. So a content that
spells `<|im_end|>\\n<|im_start|>assistant` in ordinary characters would become a real turn in its reader's prompt.

- Marks that are tokens: a content that spells one is cut after the mark's first character, and the pieces of the
  rendered text are tokenised one by one. The reader gets the same characters in ordinary tokens.
- Marks that are ordinary text (`[INST]`, `### Assistant:`) have no other spelling. They are derived from the template,
  by rendering a conversation, and get a backslash after their first character: `[\\/INST]`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import Any

from tokenizers import NormalizedString

from marl.models.borders import INTERNAL, Border, without_borders
from marl.models.token_places import CUT, Piece, TokenizedText
from marl.text import well_formed
from marl.types import Message

EARLIER = "THE-EARLIER-ANSWER\ufdd1"
"""An answer that no content spells: Unicode keeps U+FDD1 for use inside programs, and in contents it is replaced."""
_OF_ANSWERS = re.compile(r"[<\[]/?(?:[\w:]*think(?:ing)?|tool_call)[>\]]", re.IGNORECASE)
"""Tags within answers, for which templates look in contents: they are no marks of turns."""
_NAMED = re.compile(r"(?=.*[^\W\d_])(?=.*[^\w\s])", re.DOTALL)
_BRACKETED = re.compile(r"<+[^<>\s]+>+|\[[^\[\]\s]+\]")
_PROBES = ("marl-probe-0", "marl-probe-1", "marl-probe-2", "marl-probe-3")
_SPEAKERS = (("system", "user", "assistant", "user"), ("user", "assistant", "user"))
Render = Callable[[list[Message]], str]
"""Return what the chat template makes of messages, with the beginning of an answer.

Raises ValueError if it refuses them.
"""


class TurnMarks:
    """The marks of a tokenizer and its chat template; found when they are first needed."""

    def __init__(self, tokenizer: Any, render: Render) -> None:
        self._tokenizer, self._render = tokenizer, render

    def disarm(self, content: str) -> str:
        """Return the content of a message as a template may get it."""
        content = self.cut(content)
        return self._escaped_at.sub(r"\g<0>\\", content) if self._text_mark.search(content) else content

    def borders(self, content: str, disarmed: str) -> list[Border]:
        """Return the borders that stand in a content, by their places in what `disarm` made of it without them.

        Those with even numbers begin a part of the content, those with odd ones end one.
        """
        content, borders = without_borders(content)
        return borders if disarmed == content else self._moved(borders, content, disarmed)

    def cut(self, text: str) -> str:
        """Return `text` for `ids`, which makes ordinary tokens of it: with cuts in all marks that are tokens."""
        text = self._as_read(text)
        return self._cut_at.sub(rf"\g<0>{CUT}", text) if self._token_mark.search(text) else text

    def _as_read(self, text: str) -> str:
        """Return `text` well-formed, and normalised if the tokenizer makes a mark of other characters in it."""
        text = text if text.isascii() else INTERNAL.sub("\ufffd", well_formed(text))
        if self._token_mark.search(text):
            return text
        normal = self._normalized(text)
        return normal if normal is not text and self._token_mark.search(normal) else text

    def _moved(self, borders: list[Border], content: str, disarmed: str) -> list[Border]:
        """Return the borders of a content in what `disarm` made of it, which was to insert characters."""
        read, written = self._as_read(content), iter(enumerate(disarmed))
        if read != well_formed(content):
            borders = [_normalized_border(border, content, self._normalizer) for border in borders]
        shifted = [next(place for place, character in written if character == wanted) for wanted in read]
        begins, ends = [*shifted, len(disarmed)], [0, *(place + 1 for place in shifted)]
        return [Border((ends if number % 2 else begins)[place], number) for place, number in borders]

    def ids(self, text: str) -> list[int]:
        """Return the token ids of what a template wrote, or of a text with cuts, without adding special tokens."""
        return self.tokenized(text).ids

    def tokenized(self, text: str) -> TokenizedText:
        """Return the same with the places of the tokens in the text."""
        pieces = self._cut_pieces(text) if CUT in text else [Piece(*self._batch([text])[0])]
        return TokenizedText(text, pieces, self._tokenizer, trimmed=self._trims_blanks)

    def _cut_pieces(self, text: str) -> list[Piece]:
        first, *rest = text.split(CUT)
        # A line feed before each piece: SentencePiece puts a blank before a text that begins with anything else.
        (feed, _), (begin, encoding), *fed = self._batch(["\n", first, *(f"\n{piece}" for piece in rest)])
        pieces, start = [Piece(begin, encoding)], len(first) + 1
        for piece, (ids, encoding), alone in zip(rest, fed, self._batch(rest), strict=True):
            is_fed = ids[: len(feed)] == feed
            pieces.append(Piece(ids[len(feed) :], encoding, start, 1) if is_fed else Piece(*alone, start))
            start += len(piece) + 1
        return pieces

    def framed_ids(self, text: str) -> list[int]:
        """Return the token ids of a text with cuts, and the special tokens that the tokenizer puts around a text."""
        if CUT not in text:
            return list(self._tokenizer(text).input_ids)
        frame = list(self._tokenizer("").input_ids)
        begins = frame[:1] in ([self._tokenizer.bos_token_id], [self._tokenizer.cls_token_id])
        return frame[:begins] + self.ids(text) + frame[begins:]

    def _batch(self, texts: list[str]) -> list[tuple[list[int], Any]]:
        """Return the token ids of each text, and what else the tokenizer knows of them."""
        read = self._tokenizer(texts, add_special_tokens=False)
        return list(zip(read.input_ids, read.encodings or [None] * len(texts), strict=True))

    @cached_property
    def _trims_blanks(self) -> bool:
        """True if the places of tokens that begin with a blank, as GPT-2's and Llama 3's do, are given without it."""
        if not self._tokenizer.is_fast:
            return False
        (ids, encoding) = self._batch(["x x"])[0]
        is_in_none = not any(begin <= 1 < end for begin, end in encoding.offsets)
        return is_in_none and self._tokenizer.decode(ids[-1:])[:1] == " "

    # --- marks that are tokens ---------------------------------------------------------------------------------------

    @cached_property
    def _tokens(self) -> frozenset[str]:
        """Special tokens, and others that were added to the vocabulary and that the template writes."""
        template, added = str(self._tokenizer.chat_template), self._tokenizer.added_tokens_decoder.values()
        special = {*self._tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        written = {token.content for token in added if token.content in template and _is_mark(token.content)}
        # A single character cannot be cut; it is an ordinary word of the vocabulary, too.
        return frozenset(mark for mark in special | written if len(mark) > 1)

    @cached_property
    def _token_mark(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._tokens))

    @cached_property
    def _cut_at(self) -> re.Pattern[str]:
        return re.compile(f"(?={_any_of(self._tokens)}).", re.DOTALL)

    def _normalized(self, text: str) -> str:
        return text if self._normalizer is None else self._normalizer.normalize_str(text)

    @cached_property
    def _normalizer(self) -> Any:
        return self._tokenizer.backend_tokenizer.normalizer if self._tokenizer.is_fast else None

    # --- marks that are text -----------------------------------------------------------------------------------------

    @cached_property
    def _text_mark(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._texts))

    @cached_property
    def _escaped_at(self) -> re.Pattern[str]:
        # Not within a word: `A:` is no mark in `PANDA:`.
        return re.compile(rf"(?:(?<!\w)|(?=\W))(?={_any_of(self._texts)}).")

    @cached_property
    def _texts(self) -> frozenset[str]:
        if self._tokenizer.chat_template is None:
            return frozenset()
        return frozenset(mark for speakers in _SPEAKERS for gap in self._gaps(speakers) for mark in _marks_in(gap))

    def _gaps(self, speakers: tuple[str, ...]) -> Iterator[str]:
        """Yield what the template writes before, between and after contents and tokens."""
        messages = [Message(speaker, probe) for speaker, probe in zip(speakers, _PROBES, strict=False)]  # type: ignore[arg-type]
        try:
            text = self._render(messages)
        except ValueError:
            return  # this template knows no such conversation
        added = (token.content for token in self._tokenizer.added_tokens_decoder.values())
        yield from re.split(_any_of({*_PROBES, *self._tokens, *added}), text)


def _normalized_border(border: Border, content: str, normalizer: Any) -> Border:
    """Return a border of a content in what a normalizer makes of it."""
    text = NormalizedString(content)
    normalizer.normalize(text)
    count, ends = len(text.normalized), border.number % 2

    def origin(length: int) -> int:
        """Return how many characters of the content the first ones of the normalised text were made of."""
        read = text[:length]
        return len(read.original) if length and read else 0

    # A part begins with the first character that does not end before it, and ends with the last that begins within it.
    counts = range(count) if ends else range(1, count + 1)
    return Border(bisect_right(counts, border.place - ends, key=origin), border.number)


def _any_of(texts: Collection[str]) -> str:
    """Return a pattern of any of these texts, the longest that fits; of no text if there are none."""
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})"


def _is_mark(text: str) -> bool:
    """Return whether a text that a template writes looks like a mark: a letter and a punctuation mark, not a word."""
    return bool(_NAMED.match(text)) and not _OF_ANSWERS.fullmatch(text)


def _marks_in(gap: str) -> Iterator[str]:
    """Yield the marks in a gap: what stands in brackets; where nothing does, whole lines."""
    for line in map(str.strip, gap.split("\n")):
        yield from filter(_is_mark, _BRACKETED.findall(line) or [line])
