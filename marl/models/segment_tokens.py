"""Segments of a completion: the last token of each, and the offset in the text after each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from marl.core.config import Segments
from marl.core.types import Message
from marl.models.chat_template import ChatTokenizer
from marl.models.text_markers import NONCHARACTERS, MessageSpan, begin_and_end_offsets_of_spans, insert_markers
from marl.models.token_spans import Range, TokenizedText
from marl.text.segments import segment_end_offsets


class SegmentEnds(NamedTuple):
    """Ends of the segments of a completion, in order."""

    last_tokens: tuple[int, ...] = ()
    """Index of the last token of each segment."""
    offsets: tuple[int, ...] = ()
    """Offset in the completion's text after each segment."""


def find_segment_ends(chat: ChatTokenizer, segments: Segments, token_ids: tuple[int, ...], text: str) -> SegmentEnds:
    """Return the ends of the segments of the completion `token_ids`, whose text is `text`.

    A segment ends with the token that contains its last character, so a token never belongs to two segments. The last
    segment ends with the last token, also if a stop text was cut from `text`.
    """
    # The template may begin the text with an opened thought, which no sampled token contains.
    prefix_length = len(chat.thinking_prefix)
    characters_before_end = _characters_up_to_token(chat, token_ids)

    def end_offset(token: int) -> int:
        """Return the offset in `text` after the token with index `token`."""
        return min(prefix_length + characters_before_end(token), len(text))

    last = len(token_ids) - 1
    if segments.by == "tokens":
        ends = {*range(segments.length - 1, last, segments.length), last}
    else:
        ends = {last}
        for offset in segment_end_offsets(text, segments)[:-1]:
            if offset > prefix_length:
                ends.add(min(bisect_left(range(last), offset, key=end_offset), last))
    last_tokens = sorted(ends)
    # An end token alone is no segment.
    if len(last_tokens) > 1 and not text[end_offset(last_tokens[-2]) :].strip():
        del last_tokens[-2]
    offsets = [*map(end_offset, last_tokens[:-1]), len(text)]
    return SegmentEnds(tuple(last_tokens), tuple(offsets))


def last_tokens_in_conversation(
    chat: ChatTokenizer, finished_chat: Sequence[Message], offsets: Sequence[int]
) -> list[int]:
    """Return the index of the last token of each segment of the last message in `chat.encode_conversation`'s result.

    `offsets` are the offsets in the last message after each segment. A segment that the template does not render ends
    with the segment before it.

    Raises:
        ValueError: if the chat template refuses the messages.
    """
    rendered, last = chat.render_conversation(finished_chat), len(finished_chat) - 1
    tokens = chat.escaper.tokenize_with_positions(rendered.text)
    escaped = rendered.messages[-1].content
    spans = escaped_spans(chat, finished_chat[last].content, escaped, offsets)
    in_message = [MessageSpan(len(rendered.messages) - 1, begin, end) for begin, end in spans]
    ids, inner = chat.encode_conversation(finished_chat), tuple(tokens.ids)
    # If the tokenizer adds special tokens at the front, all positions are shifted by their number.
    shift = next(begin for begin in range(len(ids)) if ids[begin : begin + len(inner)] == inner)
    return [last + shift for last in last_tokens_of_spans(tokens, rendered.rendered_ranges(in_message))]


def escaped_spans(chat: ChatTokenizer, content: str, escaped: str, offsets: Sequence[int]) -> list[Range]:
    """Return the range of each segment of `content` in `escaped`, the content with its markup escaped.

    `offsets` are the offsets in `content` after each segment.
    """
    # Noncharacters in a content would be mistaken for markers.
    clean = Message("assistant", NONCHARACTERS.sub("\ufffd", content))
    spans = [MessageSpan(0, begin, end) for begin, end in pairwise((0, *offsets))]
    [marked] = insert_markers([clean], begin_and_end_offsets_of_spans(spans))
    markers = chat.escaper.markers_in_escaped_content(marked.content, escaped)
    positions = {marker.number: marker.position for marker in markers}
    return [(positions[n], max(positions[n], positions[n + 1])) for n in range(0, len(positions), 2)]


def last_tokens_of_spans(tokens: TokenizedText, spans: Sequence[Range]) -> list[int]:
    """Return the index of the last token of each of `spans`, or of the span before it if it has no token."""
    ends: list[int] = []
    for begin, end in tokens.token_spans(spans) or ():
        ends.append(max([end - 1 if begin < end else 0, *ends[-1:]]))
    return ends


def _characters_up_to_token(chat: ChatTokenizer, token_ids: tuple[int, ...]) -> Callable[[int], int]:
    """Return a function: index of a token -> number of characters of the text up to this token, inclusive."""
    pieces = [chat.text((token_id,)) for token_id in token_ids]
    if "".join(pieces) == chat.text(token_ids):
        return list(accumulate(map(len, pieces))).__getitem__

    # Tokens are decoded together if a character has several tokens, or if the decoder puts blanks between words.
    @cache
    def characters(token: int) -> int:
        # An incomplete character at the end decodes to U+FFFD, and ends with a later token.
        return len(chat.decode(token_ids[: token + 1]).rstrip("\ufffd"))

    return characters
