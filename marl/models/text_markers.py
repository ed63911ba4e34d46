"""Numbered markers in message contents, which chat templates copy, to find positions of contents in rendered texts.

Markers are written in code points that no content has.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from marl.core.types import Message
from marl.models.token_spans import Range

NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
"""Pattern of the Unicode noncharacters, which are reserved for programs. Modules of this package use them as marks."""
_END, _DIGITS = "\ufdd4", "".join(map(chr, range(0xFDE0, 0xFDEA)))
_MARKER = re.compile(f"([{_DIGITS}]+){_END}")
_TO_MARKER_DIGITS, _FROM_MARKER_DIGITS = str.maketrans("0123456789", _DIGITS), str.maketrans(_DIGITS, "0123456789")


class TextMarker(NamedTuple):
    """Numbered marker in a text."""

    position: int
    """Index of the character after the marker."""
    number: int


class MessageSpan(NamedTuple):
    """Span of a message's content: the characters from `begin` to `end` (exclusive)."""

    message: int
    """Index of the message."""
    begin: int
    end: int


class ContentOffset(NamedTuple):
    """Offset in the content of a message."""

    message: int
    """Index of the message."""
    offset: int


def begin_and_end_offsets_of_spans(spans: Sequence[MessageSpan]) -> list[ContentOffset]:
    """Return the begin of each of `spans` (at index 2n for span n) and its end (at 2n + 1)."""
    ends: list[ContentOffset] = []
    for message, begin, end in spans:
        ends += ContentOffset(message, begin), ContentOffset(message, end)
    return ends


def insert_markers(messages: Sequence[Message], offsets: Sequence[ContentOffset]) -> list[Message]:
    """Return `messages` with marker number n inserted at `offsets[n]`, for each n."""
    marked = list(messages)
    places = [(*offset, number) for number, offset in enumerate(offsets)]
    # Markers are inserted from the end, because an insertion shifts all later offsets.
    for message, offset, number in sorted(places, reverse=True):
        content = marked[message].content
        marker = f"{str(number).translate(_TO_MARKER_DIGITS)}{_END}"
        marked[message] = marked[message]._replace(content=content[:offset] + marker + content[offset:])
    return marked


def extract_markers(text: str) -> tuple[str, list[TextMarker]]:
    """Return `text` without its markers, and the markers with their positions in the returned text."""
    if _END not in text:
        return text, []
    # Splitting by a pattern with one group alternates between texts and the numbers of markers.
    split = _MARKER.split(text)
    pieces, markers, length = [split[0]], [], len(split[0])
    for number, piece in zip(split[1::2], split[2::2], strict=True):
        markers.append(TextMarker(length, int(number.translate(_FROM_MARKER_DIGITS))))
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), markers


class RenderedPrompt:
    """Text that a chat template renders from messages, which locates spans of the messages in the text."""

    def __init__(self, messages: Sequence[Message], render: Callable[[Sequence[Message]], str], text: str) -> None:
        """`render`: function that renders messages; `text`: result of `render(messages)`."""
        self.messages, self._render, self.text = messages, render, text

    def rendered_ranges(self, spans: Sequence[MessageSpan]) -> list[Range]:
        """Return the range (begin, end) of each of `spans` in the rendered text.

        If the template strips characters at the ends of a span, its range holds the remaining characters. The range is
        (0, 0) if no character remains.
        """
        positions = self._rendered_positions(begin_and_end_offsets_of_spans(spans))
        ranges: list[Range] = []
        for span, begin, end in zip(spans, positions[::2], positions[1::2], strict=True):
            ranges.append(
                self._rendered_range_without_stripped_ends(span) if begin is None or end is None else (begin, end)
            )
        return ranges

    def _rendered_positions(self, offsets: Sequence[ContentOffset]) -> list[int | None]:
        """Return the position of each of `offsets` in the rendered text.

        The position is None if a marker at the offset would not be rendered, or would change the rendered text.
        """
        text, rendered = extract_markers(self._render(insert_markers(self.messages, offsets)))
        # A template may strip blanks at the ends of a content; beside a marker it does not, which changes the text.
        if text != self.text:
            return [None] * len(offsets)
        # In reversed order the first copy wins, if the template renders a content twice.
        positions = {number: position for position, number in reversed(rendered)}
        return list(map(positions.get, range(len(offsets))))

    def _rendered_range_without_stripped_ends(self, span: MessageSpan) -> Range:
        """Return the range in the rendered text of the part of `span` that the template does not strip."""
        # Bisection finds the first and the last character that the template does not strip.
        message, begin, end = span

        def rendered_position(content_offset: int) -> int | None:
            return self._rendered_positions([ContentOffset(message, content_offset)])[0]

        begin += bisect_left(range(begin, end), True, key=lambda offset: rendered_position(offset) is not None)
        end -= bisect_left(range(end - begin), True, key=lambda back: rendered_position(end - back) is not None)
        first, last = rendered_position(begin), rendered_position(end)
        if begin == end or first is None or last is None:
            return 0, 0
        # A template may test whether a content begins or ends with a text such as `<tool_response>`.
        # Markers beside such a text change the test, so these characters are searched in the rendered text.
        content = self.messages[message].content
        head, tail = content[span.begin : begin], content[end : span.end]
        before = len(head) if head.strip() and self.text.endswith(head, 0, first) else 0
        behind = len(tail) if tail.strip() and self.text.startswith(tail, last) else 0
        return first - before, last + behind
