"""Borders: numbered places in a text, held by code points that no content has, so that a chat template carries them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from marl.types import Message

INTERNAL = re.compile("[\ufdd0-\ufdef]")
"""Code points that Unicode keeps for use inside programs, such as these, `CUT` and those of `word_tokenizer.py`."""
_END, _DIGITS = "\ufdd4", "".join(map(chr, range(0xFDE0, 0xFDEA)))
_BORDER = re.compile(f"([{_DIGITS}]+){_END}")
_SPELL, _READ = str.maketrans("0123456789", _DIGITS), str.maketrans(_DIGITS, "0123456789")


class Border(NamedTuple):
    """A numbered place in a text: before the character with this index."""

    place: int
    number: int


class MarkedPart(NamedTuple):
    """Characters `begin` to `end` of the content of a message."""

    message: int
    begin: int
    end: int


def with_borders(text: str, borders: Iterable[Border]) -> str:
    """Return `text` with borders in it."""
    parts, done = [], 0
    for place, number in sorted(borders):
        parts += [text[done:place], str(number).translate(_SPELL), _END]
        done = place
    return "".join([*parts, text[done:]])


def without_borders(text: str) -> tuple[str, list[Border]]:
    """Return a text without its borders, and these."""
    if _END not in text:
        return text, []
    first, *rest = _BORDER.split(text)
    parts, borders, length = [first], [], len(first)
    for number, part in zip(rest[::2], rest[1::2], strict=True):
        borders.append(Border(length, int(number.translate(_READ))))
        parts.append(part)
        length += len(part)
    return "".join(parts), borders


class WrittenPrompt:
    """The text that a template writes of messages, and the places of their characters in it."""

    def __init__(self, messages: Sequence[Message], write: Callable[[Sequence[Message]], str], text: str) -> None:
        """`text`: what `write` makes of the messages."""
        self.messages, self._write, self.text = messages, write, text

    def spans(self, parts: Sequence[MarkedPart]) -> list[tuple[int, int]]:
        """Return the first character of each part in `text`, and the one after its last.

        Of a part that the template cuts at its ends, what is left; (0, 0) if that is nothing.
        """
        places = self._places([(part.message, place) for part in parts for place in part[1:]])
        return [
            self._cut_span(part) if begin is None or end is None else (begin, end)
            for part, begin, end in zip(parts, places[::2], places[1::2], strict=True)
        ]

    def _places(self, borders: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the place in `text` of each (message, place in its content).

        None where a border would not be written, or would change what is: blanks are stripped only at the very ends.
        """
        borders_in: dict[int, list[Border]] = {}
        for number, (message, place) in enumerate(borders):
            borders_in.setdefault(message, []).append(Border(place, number))
        contents = [with_borders(m.content, borders_in.get(index, ())) for index, m in enumerate(self.messages)]
        bordered = [Message(m.role, content) for m, content in zip(self.messages, contents, strict=True)]
        text, written = without_borders(self._write(bordered))
        # Of a content that is written twice, the first counts.
        places = {number: place for place, number in reversed(written)} if text == self.text else {}
        return [places.get(number) for number in range(len(borders))]

    def _cut_span(self, part: MarkedPart) -> tuple[int, int]:
        """Return the span of what the template writes of a part, whose ends are searched by bisection."""
        message, begin, end = part

        def place(offset: int) -> int | None:
            return self._places([(message, offset)])[0]

        begin += bisect_left(range(begin, end), True, key=lambda offset: place(offset) is not None)
        end -= bisect_left(range(end - begin), True, key=lambda back: place(end - back) is not None)
        first, last = place(begin), place(end)
        if begin == end or first is None or last is None:
            return 0, 0
        # A template may look for a text at the ends of a content, such as `<tool_response>`, and write it all the same.
        content = self.messages[message].content
        head, tail = content[part.begin : begin], content[end : part.end]
        before = len(head) if head.strip() and self.text.endswith(head, 0, first) else 0
        behind = len(tail) if tail.strip() and self.text.startswith(tail, last) else 0
        return first - before, last + behind
