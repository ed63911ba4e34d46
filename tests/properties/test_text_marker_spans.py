"""Tokens of marks: exactly those that hold a marked character, for every template, tokenizer and content."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hostile_text import texts, tried
from hypothesis import strategies as st

from marl.core.config import Sampling
from marl.core.types import Message, Request, SpanFromEarlierTurn
from marl.models.chat_template import ChatTokenizer
from marl.models.tiny_build import make_tiny_tokenizer
from tests.support.chat_templates import PUBLISHED
from tests.support.vocabulary_bytes import TokenBytes

_TEMPLATES = [name for name, published in PUBLISHED.items() if not published.text_marks]
_READERS = [
    ("tiny", ""),
    *((name, kind) for name in _TEMPLATES for kind in ("bytes", "trimmed", "pieces", "old_pieces")),
]
_MARKS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300), st.integers(0, 60)), min_size=1, max_size=6)
"""(message, beginning, length), to be fitted to the messages."""


@cache
def reader(name: str, kind: str) -> ChatTokenizer:
    tokenizer: Any = make_tiny_tokenizer("bytes") if name == "tiny" else PUBLISHED[name].tokenizer(kind)
    return ChatTokenizer(tokenizer, frozenset([tokenizer.eos_token_id]))


def contents(name: str) -> st.SearchStrategy[str]:
    """Return contents that spell special tokens whole and in part, between letters that no template strips."""
    tokens = ("<eos>", "<assistant>") if name == "tiny" else (*PUBLISHED[name].special, *PUBLISHED[name].added)
    part = st.tuples(st.sampled_from(tokens), st.integers(0, 9)).map(lambda cut: cut[0][: cut[1]])
    spelled = st.one_of(st.sampled_from(tokens), part, st.sampled_from(["\n", " ", "  ", "é日", "🙂", "im_st", " x"]))
    return texts(spelled, most=8).map(lambda text: f"§{text[:300].encode('utf-8', 'replace').decode()}¶")


def fitted(marks: list[tuple[int, int, int]], messages: tuple[Message, ...]) -> tuple[SpanFromEarlierTurn, ...]:
    """Return marks that are parts of the messages."""
    fits = []
    for message, begin, length in marks:
        content = messages[message % len(messages)].content
        begin = begin % len(content)
        end = min(begin + length, len(content))
        fits.append(SpanFromEarlierTurn(("e", 0), "heard", message % len(messages), begin, end))
    return tuple(fits)


@pytest.mark.filterwarnings("ignore:policy 'actor'. its chat template begins every answer with a thought")
@pytest.mark.parametrize(("name", "kind"), _READERS)
def test_marks_have_the_tokens_that_hold_their_characters(name: str, kind: str, factor: int) -> None:
    chat, checked = reader(name, kind), 0
    vocabulary = TokenBytes(chat.tokenizer)

    @tried(factor * 5, *[contents(name)] * 3, _MARKS, st.booleans())
    def _(first: str, second: str, third: str, places: list[tuple[int, int, int]], goes_on: bool) -> None:
        nonlocal checked
        messages = (Message("user", f"1{first}"), Message("assistant", f"2{second}"), Message("user", f"3{third}"))
        continues = chat.prompt(Request("actor", messages[:1], Sampling())).ids if goes_on else ()
        messages = messages[2:] if goes_on else messages
        request = Request("actor", messages, Sampling(), continues=continues, marks=fitted(places, messages))
        ids = chat.prompt(request).ids[len(continues) :]
        spelled = vocabulary.text(ids)
        for mark, span in zip(request.marks, chat.token_spans_of_marks(request), strict=True):
            begin, end = (token - len(continues) for token in span)
            content = messages[mark.message].content
            content = content.replace("▁", " ") if vocabulary.has_pieces else content  # they spell both alike
            place = spelled.find(content.encode())
            if mark.begin == mark.end:
                assert begin == end
            elif place >= 0:  # thoughts are taken out, and what is no character is replaced
                low, high = (place + len(content[:index].encode()) for index in (mark.begin, mark.end))
                expected = vocabulary.holders(ids, low, high)
                # A blank that such a tokenizer puts after a special token is part of the next character.
                added = kind == "old_pieces" and begin < expected[0] and vocabulary.text(ids[begin : begin + 1]) == b" "
                assert (begin + added, end) == expected, (content, mark)
                checked += 1

    assert checked > factor * 2
