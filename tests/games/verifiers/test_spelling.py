"""Texts that are the same but for case, spaces and empty punctuation, and texts that are not."""

# ruff: noqa: RUF001 (signs of other scripts are what is tested)

from __future__ import annotations

import pytest

from marl.core.types import Problem, VerifierCase
from marl.games.verifiers.text_verifiers import ExactVerifier

LOOSE = ExactVerifier(punctuation=False, articles=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            ("5", "- 5"),
            ("5", "-5"),
            ("5", "\u20135"),
            ("5", "+5"),
            ("-1", "+1"),
            ("-x", "x"),
            ("1.5", "15"),
            ("10:30", "1030"),
        ),
        *(
            ("C", "C#"),
            ("C", "C++"),
            ("C++", "C+"),
            ("F#", "F"),
            ("#5", "5"),
            ("$5", "5"),
            ("10%", "10"),
            ("R&D", "R D"),
        ),
        *(
            ("a@b", "a b"),
            ("A*", "A"),
            ("x!", "x"),
            ("n'", "n"),
            ("yes", "[yes]?"),
            ("A+", "A+ A-"),
            ("x", "~x"),
            ("5/6", "5 6"),
            ("5!", "5"),
            ("x²", "x2"),
            ("½", "1/2"),
            ("½", "12"),
            ("①", "1"),
        ),
        *(("no dog", "no a dog"), ("no dog", "No  the dog"), ("1,5", "1 5"), ("1,5", "1, 5"), ("1,5", "15")),
        *(("a.b.com", "ab com"), ("U.S. 5", "US5"), ("1.5", "1. 5")),
        *(("Paris", "Paris?"), ("Paris", "Раris"), ("vitamin A", "vitamin"), ("hepatitis A virus", "hepatitis virus")),
        *(("Rust", "R"), ("Paris", "not Paris"), ("(1, 2)", "[1, 2]"), ("x - y", "x y")),
    ],
)
def test_marks_with_a_meaning_count_even_where_punctuation_does_not(one: str, other: str) -> None:
    for gold, answer in ((one, other), (other, one)):
        for check in (LOOSE, ExactVerifier()):
            assert check(VerifierCase(Problem("p", "", gold), answer, answer)).score == 0, (gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        *(
            ("well-known", "well known"),
            ("Beatles", "The Beatles."),
            ("Hello, world", "hello world!"),
            ("I’m here", "I'm here"),
            ("J. Smith", "J Smith"),
            ("U.S.A.", "USA"),
            ("U.S.A.", "usa."),
            ("in the U.S.", "in the US"),
            ("J. R. R. Tolkien", "J.R.R. Tolkien"),
            ("J.R.R. Tolkien", "JRR Tolkien"),
            ("July 4, 1776", "July 4 1776"),
            ("A cat", "cat"),
        ),
        *(('the "Beatles"', "beatles"), ("Rock (music)", "rock music"), ("St. John", "st john"), ("C++", "c++.")),
        *(
            ("New Zealand", "Ｎｅｗ　Ｚｅａｌａｎｄ"),
            ("ﬁne", "fine"),
            ("café", "cafe\u0301"),
            ("Vitamin A", "the vitamin A"),
        ),
    ],
)
def test_case_spaces_and_empty_punctuation_do_not_count(gold: str, answer: str) -> None:
    assert LOOSE(VerifierCase(Problem("p", "", gold), answer, answer)).score == 1
