"""Marks of answers, and the words that take them back."""

# ruff: noqa: RUF001 (signs of other scripts are what is tested)

from __future__ import annotations

import pytest

from marl.text.answers import (
    AnswerSpan,
    drop_retracted_answers,
    find_latex_boxes,
    find_square_brackets,
    find_tagged_spans,
    offset_after_closing_brace,
)


def left(text: str) -> list[str]:
    """Contents of the brackets that stand."""
    return [mark.content for mark in drop_retracted_answers(text, find_square_brackets(text))]


@pytest.mark.parametrize(
    "retraction",
    [
        *(
            "wait",
            "Wait, no.",
            "no, ",
            "No.",
            "no wait",
            "actually",
            "Actually, ",
            "oops",
            "Sorry,",
            "hold on",
            "correction: ",
        ),
        *(
            "hmm, wait",
            "oh no, ",
            "but wait",
            "I mean ",
            "i was wrong",
            "I made a mistake",
            "my mistake",
            "let me recompute",
        ),
        *("scratch that", "strike that", "On second thought,", "I take that back", "never mind", "ignore the above"),
        *("that's wrong", "that is not right", "this is incorrect", "which was a mistake", "it isn't right"),
        *("the answer is not that.", "等等", "不对，", "更正：", "错了"),
    ],
)
def test_words_that_take_back(retraction: str) -> None:
    assert left(f"So [5]. {retraction} [6]") == ["6"]
    assert left(f"So [5] ... {retraction}") == []


@pytest.mark.parametrize(
    "words",
    [
        *(
            "There is no other.",
            "No other values work.",
            "This is actually well known.",
            "We must wait for it.",
            "Rather than 6, it is so.",
        ),
        *(
            "I know that it is right.",
            "Option A is wrong because it is 6.",
            "Correct answers are rare.",
            "Isn't it nice?",
            "Know this.",
        ),
    ],
)
def test_words_that_take_nothing_back(words: str) -> None:
    assert left(f"So [5]. {words}") == ["5"]


def test_words_within_a_mark_and_before_the_first_one_take_nothing_back() -> None:
    assert left("Wait, no. Actually, [no, wait]") == ["no, wait"]


@pytest.mark.parametrize("denial", ["not ", "It is not ", "I can't play ", "never ", "anything except ", "不是"])
def test_what_is_denied_does_not_stand(denial: str) -> None:
    assert left(f"{denial}[5]") == []
    assert left(f"{denial}[5], [6]") == ["6"]
    assert left("Do not worry. [5]") == ["5"]


def test_boxes_are_outermost_and_parts_of_formulas_are_empty() -> None:
    text = (
        r"\boxed{a\boxed{b}} \fbox {c} \boxed d \boxed\frac{1}{2}; then -\boxed{e}; \boxed{f}^2 \boxed{\{g\}} \boxed{h"
    )
    assert [box.content for box in find_latex_boxes(text)] == [
        r"a\boxed{b}",
        "c",
        "d",
        r"\frac{1}{2}",
        "",
        "",
        r"\{g\}",
        "",
    ]


def test_tags_must_alternate() -> None:
    assert find_tagged_spans("<a>x</a><a>y</a>", "a") == [AnswerSpan(0, 8, "x"), AnswerSpan(8, 16, "y")]
    assert find_tagged_spans("none", "a") == []
    for text in ("<a>", "</a><a>", "<a><a></a></a>"):
        assert find_tagged_spans(text, "a") is None


def test_a_brace_that_is_never_closed_ends_behind_the_text() -> None:
    assert offset_after_closing_brace("{a}", 1) == 3
    assert offset_after_closing_brace(r"{a\}", 1) == 5


@pytest.mark.parametrize(
    "words",
    [
        *("I first thought", "I first thought that the area was", "I initially thought it was", "We initially got"),
        *("I initially had", "At first I thought it was", "At first, I got", "Originally I had", "I originally found"),
        *("I at first believed it to be", "I had originally assumed", "我以为", "未必"),
    ],
)
def test_what_one_first_thought_does_not_stand(words: str) -> None:
    assert left(f"{words} [5], but it is [6]") == ["6"]
    assert left(f"{words} [5].") == []


@pytest.mark.parametrize(
    "words", ["Tom initially had", "At first glance it looks like", "Originally there were", "I first thought. So"]
)
def test_what_was_at_first_so_in_the_story_stands(words: str) -> None:
    assert left(f"{words} [5].") == ["5"]
