"""Numbered markers in a text, written in code points that no content has, so that a chat template copies them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from marl.core.types import Message

NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
"""Unicode noncharacters, reserved for use inside programs: the markers' code points and those of other modules."""
_END, _DIGITS = "\ufdd4", "".join(map(chr, range(0xFDE0, 0xFDEA)))
_MARKER = re.compile(f"([{_DIGITS}]+){_END}")
_SPELL, _READ = str.maketrans("0123456789", _DIGITS), str.maketrans(_DIGITS, "0123456789")


class TextMarker(NamedTuple):
    """A numbered marker in a text."""

    position: int
    """Index of the character after the marker."""
    number: int


class MessageSpan(NamedTuple):
    """The characters `begin` to `end` (exclusive) of a message's content."""

    message: int
    begin: int
    end: int


def insert_markers(text: str, markers: Iterable[TextMarker]) -> str:
    """Return `text` with `markers` inserted."""
    pieces, begin = [], 0
    for position, number in sorted(markers):
        pieces += [text[begin:position], str(number).translate(_SPELL), _END]
        begin = position
    return "".join([*pieces, text[begin:]])


def extract_markers(text: str) -> tuple[str, list[TextMarker]]:
    """Return `text` without its markers, and the markers with their positions in that text."""
    if _END not in text:
        return text, []
    # A split by a pattern with one group alternates pieces and numbers.
    split = _MARKER.split(text)
    pieces, markers, length = [split[0]], [], len(split[0])
    for number, piece in zip(split[1::2], split[2::2], strict=True):
        markers.append(TextMarker(length, int(number.translate(_READ))))
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), markers


class RenderedPrompt:
    """Text that a chat template renders from messages, with the positions of the messages' characters."""

    def __init__(self, messages: Sequence[Message], write: Callable[[Sequence[Message]], str], text: str) -> None:
        """`text` is the result of `write(messages)`."""
        self.messages, self._write, self.text = messages, write, text

    def spans(self, spans: Sequence[MessageSpan]) -> list[tuple[int, int]]:
        """Return the range (begin, end) in `text` of each span of a message.

        If the template strips characters at the ends of a span, the range of the remaining characters; (0, 0) if no
        character remains.
        """
        ends: list[tuple[int, int]] = []
        for message, begin, end in spans:
            ends += (message, begin), (message, end)
        positions = self._positions(ends)
        ranges: list[tuple[int, int]] = []
        for span, begin, end in zip(spans, positions[::2], positions[1::2], strict=True):
            ranges.append(self._stripped_range(span) if begin is None or end is None else (begin, end))
        return ranges

    def _positions(self, offsets: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the position in `text` of each (message, offset in its content).

        None if a marker at the offset would not be rendered, or would change the rendered text.
        """
        markers: list[list[TextMarker]] = [[] for _ in self.messages]
        for number, (message, offset) in enumerate(offsets):
            markers[message].append(TextMarker(offset, number))
        marked: list[Message] = []
        for message, inner in zip(self.messages, markers, strict=True):
            marked.append(Message(message.role, insert_markers(message.content, inner)))
        text, rendered = extract_markers(self._write(marked))
        if text != self.text:  # a template strips blanks at the ends of a content, but not behind a marker
            return [None] * len(offsets)
        # If the template renders a content twice, the first copy counts.
        positions = {number: position for position, number in reversed(rendered)}
        return [positions.get(number) for number in range(len(offsets))]

    def _stripped_range(self, span: MessageSpan) -> tuple[int, int]:
        """Return the range in `text` of the span's remaining characters, whose ends are found by bisection."""
        message, begin, end = span

        def position(offset: int) -> int | None:
            return self._positions([(message, offset)])[0]

        begin += bisect_left(range(begin, end), True, key=lambda offset: position(offset) is not None)
        end -= bisect_left(range(end - begin), True, key=lambda back: position(end - back) is not None)
        first, last = position(begin), position(end)
        if begin == end or first is None or last is None:
            return 0, 0
        # A template may test the ends of a content for a text such as `<tool_response>`, and render it all the same: a
        # marker there changes the test, but the characters are in `text`.
        content = self.messages[message].content
        head, tail = content[span.begin : begin], content[end : span.end]
        before = len(head) if head.strip() and self.text.endswith(head, 0, first) else 0
        behind = len(tail) if tail.strip() and self.text.startswith(tail, last) else 0
        return first - before, last + behind
