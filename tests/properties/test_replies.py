"""Replies of endpoints: any bytes are a completion or a ValueError, soon."""

from __future__ import annotations

import json
from typing import Any

from hostile_text import CHARACTERS, JSON_VALUES, texts, tried, within
from hypothesis import strategies as st

from marl.engines.openai.chat_format import chat_response_to_completion, parse_chat_completion, reported_usage

_ANY = st.one_of(JSON_VALUES, texts(most=5))


def _partly(shape: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with some of the fields, some of them with values of another type."""
    return st.fixed_dictionaries(
        {}, optional={name: st.one_of(value, value, value, _ANY) for name, value in shape.items()}
    )


_FUNCTION = _partly(
    {"name": texts(most=3), "arguments": st.one_of(JSON_VALUES.map(json.dumps), texts(), st.just("[" * 50_000))}
)
_MESSAGE = _partly(
    {
        "content": st.one_of(texts(), st.none()),
        "refusal": texts(),
        "tool_calls": st.lists(_partly({"function": _FUNCTION}), max_size=3),
    }
)
_CHOICE = _partly(
    {"message": _MESSAGE, "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "content_filter", None])}
)
_USAGE = _partly({"prompt_tokens": st.integers(), "completion_tokens": st.one_of(st.integers(), st.just(10**400))})
REPLIES = _partly({"choices": st.lists(_CHOICE, max_size=3), "usage": _USAGE, "id": _ANY, "logprobs": _ANY})


def attempt(body: bytes) -> None:
    message, completion = "", None
    with within(20.0, 2.0):
        try:
            reply = parse_chat_completion(body)
            reported_usage(reply, None)
            completion = chat_response_to_completion(reply)
        except ValueError as error:
            message = str(error)
    assert len(message) < 5000
    assert completion is None or completion.text.encode().decode() == completion.text


def test_a_reply_of_any_shape_is_a_completion_or_an_error(factor: int) -> None:
    @tried(factor * 120, REPLIES)
    def _(reply: dict[str, Any]) -> None:
        attempt(json.dumps(reply).encode())


def test_any_bytes_are_a_completion_or_an_error(factor: int) -> None:
    @tried(
        factor * 60,
        st.one_of(st.binary(), st.text(CHARACTERS).map(lambda text: text.encode("utf-8", "surrogatepass"))),
    )
    def _(body: bytes) -> None:
        attempt(body)


def test_a_reply_cut_or_changed_anywhere_is_a_completion_or_an_error(factor: int) -> None:
    @tried(factor * 50, REPLIES, st.integers(0, 2000), st.binary(max_size=3))
    def _(reply: dict[str, Any], place: int, other: bytes) -> None:
        body = json.dumps(reply).encode()
        place %= len(body)
        attempt(body[:place])
        attempt(body[:place] + other + body[place + len(other) :])


def test_deep_and_huge_replies_are_errors(factor: int) -> None:
    for body in (
        b"[" * 10**6,
        b'{"choices":' * 10**5,
        b'{"choices": [' + b"{}," * 10**5 + b"{}]}",
        b"9" * 10**6,
        b'"' + b"\\ud800" * 10**5 + b'"',
    ):
        attempt(body * factor if factor < 3 else body)
