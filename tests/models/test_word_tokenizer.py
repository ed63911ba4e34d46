"""The vocabulary of words loses nothing: what it reads of its own texts it writes again, blank for blank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from marl.host.untrusted_text import replace_surrogates
from marl.models.tiny_build import make_tiny_tokenizer
from marl.models.word_tokenizer import BLANK, JOIN, sorted_tokens
from marl.roles.answering import SolverRole

_PARTS = [
    *"ab1_é日.,;:[](){}<>/\\^-&|\"'`$%\n\t\r\u00a0\u0301\ufdd0",
    " ",
    "  ",
    "ab",
    "0.5",
    "<answer>",
    "</answer>",
    "\r\n",
]
TEXTS = st.lists(
    st.one_of(
        st.lists(st.sampled_from(_PARTS), max_size=12).map("".join), st.text(max_size=12).map(replace_surrogates)
    ),
    min_size=1,
    max_size=4,
)


def written_again(texts: list[str]) -> list[str]:
    tokenizer: Any = make_tiny_tokenizer("words", texts)
    return [tokenizer.decode(tokenizer(text).input_ids) for text in texts]


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_every_text_of_the_vocabulary_comes_back_character_for_character(texts: list[str]) -> None:
    texts = [text.replace(JOIN, "").replace(BLANK, "") for text in texts]
    assert written_again(texts) == texts


@pytest.mark.parametrize("form", ["tag", "boxed", "bracket", "json", "code", "last_line", "whole"])
def test_an_answer_in_any_form_is_read_from_the_words_of_a_tiny_model(form: str) -> None:
    role = SolverRole(policy="actor", answer=form)  # type: ignore[arg-type]
    moves = ['{"a":0.5}', '{"a":-1}'] if form == "json" else ["5", "0.5", "-12", "3/4", "x < 10 <= y"]
    texts = ["What is 3 + 4 - 5? Give one number.", *map(role.phrase, moves)]
    assert [role.parse(text, None) for text in written_again(texts)[1:]] == moves


def test_a_call_of_a_tool_is_read_from_the_words_of_a_tiny_model() -> None:
    role = SolverRole(policy="actor", tools=({"name": "calculator"},))  # type: ignore[arg-type]
    move = 'call {"name":"calculator","arguments":{"expression":"3 + 4"}}'
    texts = ["What is 3 + 4?", role.phrase(move), role.phrase("7")]
    assert [role.parse(text, None) for text in written_again(texts)[1:]] == [move, "7"]


def test_a_text_spaced_as_usual_has_one_token_a_word_and_mark() -> None:
    kuhn = make_tiny_tokenizer("words", ["card K . betting check . moves [fold] [call]", "[fold]"])
    assert kuhn.tokenize("card K . moves [fold]") == ["card", "K", ".", "moves", "[", "fold", "]"]
    tags = make_tiny_tokenizer("words", ["3 + 0.5", "<answer>3.5</answer>"])
    assert tags.tokenize("<answer>3.5</answer>") == ["<", "answer", ">", "3", ".", "5", "<", "/", "answer", ">"]
    assert sorted_tokens(["card K . moves [fold]", "[fold]"]) == [".", "K", "[", "]", "card", "fold", "moves"]


def test_what_is_unusual_has_a_token_of_its_own() -> None:
    tokenizer = make_tiny_tokenizer("words", ["a - b", "a - b", "c-d", "e  f", "g\nh"])
    assert tokenizer.tokenize("a - b") == ["a", "-", "b"]
    assert tokenizer.tokenize("c-d") == ["c", JOIN, "-", JOIN, "d"]
    assert tokenizer.tokenize("e  f") == ["e", BLANK, BLANK, "f"]
    assert tokenizer.tokenize("g\nh") == ["g", "\n", "h"]


def test_spaces_that_no_text_of_the_vocabulary_has_are_read_as_usual_ones() -> None:
    tokenizer = make_tiny_tokenizer("words", ["a - b", "[c]"])
    for text in ("a-b", "a  -\n b", " a - b\t"):
        assert tokenizer.tokenize(text) == ["a", "-", "b"]


def test_a_saved_tokenizer_reads_and_writes_the_same(tmp_path: object) -> None:
    texts = ["<answer>5</answer>", "card K . a-b  c\n"]
    tokenizer = make_tiny_tokenizer("words", texts)
    tokenizer.save_pretrained(str(tmp_path))
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in texts:
        ids = loaded(text).input_ids
        assert ids == tokenizer(text).input_ids
        assert loaded.decode(ids) == text
