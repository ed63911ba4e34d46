"""Countdown answers: plain arithmetic and nothing that only evaluates to the target."""

# ruff: noqa: RUF001 (signs of other scripts are what is tested)

from __future__ import annotations

import pytest

from marl.core.types import Problem, VerifierCase
from marl.games.verifiers.countdown import CountdownVerifier

PROBLEM = Problem("k", "Make 22 from the numbers 3 5 7.", facts={"numbers": [3, 5, 7], "target": 22})


@pytest.mark.parametrize(
    "text",
    [
        *(
            "3*5+7",
            "The answer is 3 * 5 + 7.",
            r"\boxed{3 \times 5 + 7}",
            r"3 \cdot 5 + 7 = 22",
            "３×５＋７",
            "(" * 60 + "3*5" + ")" * 60 + "+7",
        ),
        *("3*4+10. Wait, that is wrong: \\boxed{3*5+7}", "<think>3*4</think>3*5+7"),
    ],
)
def test_an_expression_may_be_stated_like_any_answer(text: str) -> None:
    assert CountdownVerifier()(VerifierCase(PROBLEM, text, text)).score == 1


@pytest.mark.parametrize(
    "text",
    [
        *(
            "3*5+7 # is wrong",
            "3*5+7 # no, 5",
            "0x3*5+7",
            "3*0b101+7",
            "3*5+7 = 2_2",
            "3*5+7==22",
            "3*5+7 = 22 = 22",
        ),
        *(
            "3*5+7. Wait, no.",
            "not 3*5+7",
            "maybe 3*5+7",
            "3*5+7 or 5*3+7",
            "(3)(5)+7",
            "3*5+[7][0]",
            "3*5+7if 1else 0",
        ),
        *(
            "3*5+7,",
            "(3*5+7,)",
            "3*5+(7:=7)",
            "__import__('os')",
            "9**9**9**9",
            "9<<9**9",
            "3*5+7\n+0",
            "22",
            "1/0",
            "1",
        ),
    ],
)
def test_what_is_no_plain_arithmetic_or_does_not_stand_is_refused(text: str) -> None:
    verdict = CountdownVerifier()(VerifierCase(PROBLEM, text, text))
    assert verdict.score == 0
    assert len(verdict.why) < 160


def test_a_countdown_answer_is_read_where_the_check_says() -> None:
    text = r"We try. \boxed{3*5+7}"
    assert CountdownVerifier(read="boxed")(VerifierCase(PROBLEM, text, None)).score == 1
    assert CountdownVerifier()(VerifierCase(PROBLEM, text, None)).score == 0
