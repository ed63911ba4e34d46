"""Request bodies that continue earlier ones: only the messages after the earlier conversation are parsed.

Clients send the full history with every call, so that the calls of a long dialogue would cost time in proportion to its
length. A body that begins with the characters of an earlier body, up to the end of one of its messages, is parsed
without these messages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from marl.gateway.calls import ApiError, Conversation
from marl.host.untrusted_text import parse_json

MIN_KNOWN_LENGTH = 8192
"""Minimum length of a kept body, in bytes: shorter bodies are parsed in less time than they are searched."""
_MAX_BODIES = 64
"""Maximum number of kept bodies of a session."""
_MAX_BYTES = 1 << 25
"""Maximum length of all kept bodies of a session together, in bytes."""
_DECODER = json.JSONDecoder()


class CachedRequestBody(NamedTuple):
    """Beginning of an earlier body, up to the end of the last message of its conversation."""

    api: str
    """Name of the API's class."""
    body: bytes
    begin: int
    """Offset of the conversation's first message in `body`."""
    conversation: Conversation

    def body_without_cached_messages(self, full_body: bytes) -> bytes | None:
        """Return `full_body` without the messages of this conversation, or None if it has no further message."""
        if not full_body.startswith(self.body):
            return None
        rest = full_body[len(self.body) :].lstrip(b" \t\r\n")
        return full_body[: self.begin] + rest[1:] if rest.startswith(b",") else None


@dataclass(slots=True)
class RequestBodyCache:
    """Latest bodies of a session's calls, each replaced by the next body that continues it."""

    _bodies: list[CachedRequestBody] = field(default_factory=list[CachedRequestBody])
    """Stored bodies in the order of their last use."""

    def find_cached_body_continued_by(self, api_name: str, new_body: bytes) -> tuple[CachedRequestBody, bytes] | None:
        """Return the earlier body that `new_body` continues and `new_body` without its messages, or None."""
        for known in reversed(self._bodies):
            if known.api == api_name and (remainder := known.body_without_cached_messages(new_body)) is not None:
                return known, remainder
        return None

    def store(self, new_body: CachedRequestBody, continued_body: CachedRequestBody | None) -> None:
        """Keep a body instead of `continued_body`, which it continues."""
        self._bodies = [body for body in self._bodies if body is not continued_body]
        self._bodies.append(new_body)
        size = sum(len(kept.body) for kept in self._bodies)
        while len(self._bodies) > _MAX_BODIES or size > _MAX_BYTES:
            size -= len(self._bodies.pop(0).body)


def decode_request_body(body: bytes) -> str:
    """Return the text of a request's body.

    Raises:
        ApiError: if the body is no UTF-8.
    """
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error


def parse_request_body(body_text: str) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        ApiError: if the body is no JSON object.
    """
    try:
        body = parse_json(body_text, only_finite_numbers=True)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    return body


def json_list_bounds(json_text: str, list_key: str) -> tuple[int, int] | None:
    """Return the offset of the first element of list `list_key` in a JSON object, and the offset after its last one.

    Returns None if the object does not have exactly one such list, or it is empty. `json_text` must be valid JSON.
    """
    bounds: tuple[int, int] | None = None
    position = _skip_spaces(json_text, _skip_spaces(json_text, 0) + 1)
    while json_text[position] != "}":
        key, position = _DECODER.raw_decode(json_text, position)
        position = _skip_spaces(json_text, _skip_spaces(json_text, position) + 1)
        if key == list_key:
            if bounds or json_text[position] != "[":
                return None
            begin = end = position = _skip_spaces(json_text, position + 1)
            while json_text[position] != "]":
                _, end = _DECODER.raw_decode(json_text, position)
                position = _skip_separator(json_text, end)
            if begin == end:
                return None
            bounds, position = (begin, end), position + 1
        else:
            _, position = _DECODER.raw_decode(json_text, position)
        position = _skip_separator(json_text, position)
    return bounds


def _skip_spaces(json_text: str, position: int) -> int:
    while json_text[position] in " \t\r\n":
        position += 1
    return position


def _skip_separator(json_text: str, position: int) -> int:
    """Return the offset of the next element, or of the closing bracket, after an element that ends at `position`."""
    position = _skip_spaces(json_text, position)
    return _skip_spaces(json_text, position + 1) if json_text[position] == "," else position
