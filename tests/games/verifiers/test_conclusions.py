"""Answers in the last sentence of a text, and dates, ranges, labels, permutations that are no numbers."""

from __future__ import annotations

import pytest
from grading import verdict

from marl.games.verifiers.conclusions import find_conclusion, find_decision


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("We add. The area is therefore 84 square units.", "84 square units"),
        ("At first I counted 2. So there are 3 solutions.", "3 solutions"),
        ("We get x = 5.", "x = 5"),
        ("It leaves at 3:15 p.m.", "3:15 p.m."),
        ("Hence the maximum value is 5, attained at $x=2$.", "5"),
        ("Der Preis beträgt 1234,50.", "1234,50"),
    ],
)
def test_the_last_sentence_states_the_value_at_its_end(text: str, content: str) -> None:
    conclusion = find_conclusion(text)
    assert conclusion is not None
    assert conclusion.content.strip(".") == content.strip(".")


@pytest.mark.parametrize(
    "text",
    [
        "I suspect the area is 84.",
        "The total isn't 7.",
        "The area is 84, the area is 85.",
        "A resposta não é 48.",
        "This completes step 3.",
        "The area is 84. It is large.",
    ],
)
def test_a_sentence_in_doubt_denied_or_without_a_value_at_its_end_states_nothing(text: str) -> None:
    assert find_conclusion(text) is None


def test_a_leading_yes_or_no_counts_before_a_reason_that_does_not_turn_against_it() -> None:
    assert find_decision("No, since 91 = 7 * 13.") == "No"
    assert find_decision("Yes, it is a tautology: it is true in every row.") == "Yes"
    assert [*map(find_decision, ("No, wait, yes.", "Yes, but only for x > 0.", "No"))] == ["", "", ""]


@pytest.mark.parametrize(
    ("gold", "answer", "question", "right"),
    [
        ("2024-01-15", "January 15, 2024", "Which date?", True),
        ("2024-01-15", "15 January 2024", "", True),
        ("2024-01-15", "January 16, 2024", "Which date?", False),
        ("10-20", "Pages 10 to 20", "Which pages?", True),
        ("10-20", "Pages 10 to 21", "Which pages?", False),
        ("1.10", "1.1", "Which version is it?", False),
        ("120/80", "3/2", "What is the blood pressure?", False),
        ("(1 2 3)", "(2 3 1)", "Write the permutation in cycle notation.", True),
        ("(1 2 3)", "(1 3 2)", "Write the permutation in cycle notation.", False),
        ("(1 2)(2 3)", "(1 2 3)", "Write the permutation as one cycle.", True),
        ("FF", "0xff", "Write 255 in hexadecimal.", True),
        ("11", "0x11", "How many are there?", False),
        ("E[X^2]-E[X]^2", r"\mathbb{E}[X^2]-(\mathbb{E}[X])^2", "", True),
        ("E[X^2]-E[X]^2", "E[X]^2-E[X^2]", "", False),
        ("y=Ce^{2x}", "y=Ae^{2x}", "Solve $y'=2y$.", True),
        ("y=Ce^{2x}", "y=Ae^{3x}", "Solve $y'=2y$.", False),
        ("ghg^{-1}", "h", "g and h are elements of a non-abelian group.", False),
        (r"\frac{1499}{1500}", r"1-\frac{1}{1500}", "", True),
        (r"\frac{3}{4}", r"1-\frac{1}{4}", "", False),
    ],
)
def test_answers_are_read_by_their_kind(gold: str, answer: str, question: str, right: bool) -> None:
    assert (verdict("math", gold, answer, question).score == 1) is right
