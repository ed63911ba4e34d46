"""Chat templates with hostile contents: only the template begins turns, and the reader gets every character."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hostile_text import texts, tried, within
from hypothesis import strategies as st

from marl.core.config import Sampling
from marl.core.types import Message, Request
from marl.models.chat_template import ChatTokenizer
from marl.models.tiny_build import make_tiny_tokenizer
from tests.support.chat_templates import PUBLISHED

_TINY = ("<eos>", "<assistant>", "<pad>", "<unk>")


@cache
def reader(name: str) -> ChatTokenizer:
    tokenizer: Any = make_tiny_tokenizer("bytes", ()) if name == "tiny" else PUBLISHED[name].tokenizer("bytes")
    return ChatTokenizer(tokenizer, frozenset([tokenizer.eos_token_id]))


def marks(name: str) -> tuple[str, ...]:
    return _TINY if name == "tiny" else (*PUBLISHED[name].special, *PUBLISHED[name].added, *PUBLISHED[name].text_marks)


def contents(name: str) -> st.SearchStrategy[str]:
    """Return contents that spell marks of the template whole, in part, doubled and within each other."""
    whole = st.sampled_from(marks(name))
    part = st.tuples(whole, st.integers(0, 20), st.integers(0, 20)).map(lambda cut: cut[0][min(cut[1:]) : max(cut[1:])])
    return texts(
        st.one_of(
            whole,
            whole,
            part,
            st.sampled_from(["\n", " ", "assistant", "user", "system", "\ufdd0", "\ue000", "<", "|>"]),
        ),
        most=12,
    )


def special(name: str, *messages: Message) -> Counter[int]:
    """Return how often each special token stands in a prompt."""
    tokenizer = reader(name).tokenizer
    ids = reader(name).prompt(Request("actor", messages, Sampling())).ids
    return Counter(token for token in ids if token in set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})


@pytest.mark.parametrize("name", ["tiny", *PUBLISHED])
def test_no_content_adds_a_special_token(name: str, factor: int) -> None:
    expected = special(name, Message("user", "a"), Message("assistant", "b"), Message("user", "c"))

    @tried(factor * 20, contents(name), contents(name))
    def _(asked: str, answered: str) -> None:
        # Templates strip contents, and some leave an empty one out, turn and all.
        turns = (Message("user", f"a{asked}z"), Message("assistant", f"b{answered}z"), Message("user", f"c{asked}z"))
        with within(20.0, 1.0):
            assert special(name, *turns) == expected


@pytest.mark.parametrize("name", ["tiny", *(name for name, published in PUBLISHED.items() if not published.text_marks)])
def test_a_content_is_read_character_for_character(name: str, factor: int) -> None:
    @tried(factor * 20, contents(name))
    def _(content: str) -> None:
        # U+FDD0 is no character: the place of a mark is held by it.
        written = f"x{content}y".encode("utf-8", "replace").decode().replace("\ufdd0", "\ufffd")
        ids = reader(name).prompt(Request("actor", (Message("user", written),), Sampling())).ids
        assert written in reader(name).tokenizer.decode(ids)
