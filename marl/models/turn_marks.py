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
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from itertools import chain
from typing import Any

from marl.text import well_formed
from marl.types import Message

CUT = "\ufdd0"
"""Marks a cut within a content. Unicode keeps this code point for use inside programs; in contents it is replaced."""
EARLIER = "THE-EARLIER-ANSWER\ufdd1"
"""An answer that no content spells, for the same reason."""
_INTERNAL = re.compile("[\ufdd0-\ufdef]")
"""Code points that Unicode keeps for use inside programs, such as these two and those of `word_tokenizer.py`."""
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

    def cut(self, text: str) -> str:
        """Return `text` for `ids`, which makes ordinary tokens of it: with cuts in all marks that are tokens."""
        text = text if text.isascii() else _INTERNAL.sub("\ufffd", well_formed(text))
        if not self._token_mark.search(text):
            normal = self._normalized(text)
            if normal is text or not self._token_mark.search(normal):
                return text
            text = normal  # as the tokenizer reads it: it could make a mark of other characters
        return self._cut_at.sub(rf"\g<0>{CUT}", text)

    def ids(self, text: str) -> list[int]:
        """Return the token ids of what a template wrote, or of a text with cuts, without adding special tokens."""
        if CUT not in text:
            return self._tokenizer(text, add_special_tokens=False).input_ids
        first, *rest = text.split(CUT)
        # A line feed before each piece: SentencePiece puts a blank before a text that begins with anything else.
        feed, begin, *fed = self._batch(["\n", first, *(f"\n{piece}" for piece in rest)])
        alone = self._batch(rest)
        begins = [piece[: len(feed)] == feed for piece in fed]
        pieces = [f[len(feed) :] if is_fed else a for f, a, is_fed in zip(fed, alone, begins, strict=True)]
        return [*begin, *chain.from_iterable(pieces)]

    def framed_ids(self, text: str) -> list[int]:
        """Return the token ids of a text with cuts, and the special tokens that the tokenizer puts around a text."""
        if CUT not in text:
            return list(self._tokenizer(text).input_ids)
        frame = list(self._tokenizer("").input_ids)
        begins = frame[:1] in ([self._tokenizer.bos_token_id], [self._tokenizer.cls_token_id])
        return frame[:begins] + self.ids(text) + frame[begins:]

    def _batch(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False).input_ids

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
