"""Options by label, by text or by both: one, several, and those of competitions."""

# ruff: noqa: RUF001 (signs of other scripts are what is tested)

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from marl.core.types import Problem, VerifierCase
from marl.games.verifiers.text_verifiers import ChoiceVerifier
from marl.protocols.tasks import overall_score

PLANETS = ("Mercury", "Venus", "the Earth", "Mars")
NUMBERS = {"1": "x", "2": "y", "3": "z"}
AMC = ("12", "15", r"\frac{1}{2}", "-5", "5")
Choices = Sequence[str] | Mapping[str, str] | None


def score(gold: str, answer: str, choices: Choices) -> float:
    facts = {} if choices is None else {"choices": choices}
    verdict = ChoiceVerifier()(VerifierCase(Problem("p", "", gold, facts=facts), answer, answer))
    return overall_score(verdict.score)


RIGHT: list[tuple[str, Choices, tuple[str, ...]]] = [
    (
        "B",
        PLANETS,
        ("B", "b", "(B)", "B.", "B)", "[B]", "B: Venus", "(B) Venus", "B - Venus", "B. **Venus**", "Venus", "venus!"),
    ),
    (
        "B",
        PLANETS,
        ("Option B", "The correct option is B.", "The correct answer is option B", "B is correct", "#### B"),
    ),
    (
        "B",
        PLANETS,
        (r"\textbf{(B)}", r"\textbf{(B)}\ Venus", r"\boxed{\text{(B) Venus}}", r"$\boxed{B}$", r"\mathrm{B}"),
    ),
    (
        "B",
        PLANETS,
        ("选B", "故选B。", "答案：B", "Ｂ", "（Ｂ）", "The answer is B because it is second.", "<answer>B</answer>"),
    ),
    ("B", PLANETS, ("A is wrong because it is first. The answer is B.", "A. Wait, no. The answer is B.")),
    (
        "A, C",
        PLANETS,
        ("A, C", "C, A", "A and C", "AC", "CA", "(A), (C)", "(A)(C)", "A; C", "A & C", '["A", "C"]', "a, c"),
    ),
    (
        "A, C",
        PLANETS,
        ("Options A and C", "Option A and Option C", "A. Mercury, C. the Earth", "Mercury and the Earth"),
    ),
    ("A, C", PLANETS, ("The answers are A and C.", "选AC", "答案是A和C", "A、C", r"\boxed{A, C}", r"\text{A and C}")),
    ('["A", "C"]', PLANETS, ("AC", "C and A")),
    ("2", NUMBERS, ("2", "(2)", "2.", "2) y", "y", "Option 2", "The answer is 2")),
    ("1, 3", NUMBERS, ("1, 3", "3 and 1", "(1)(3)", "x and z")),
    (
        r"\textbf{(B)}\ 15",
        AMC,
        ("B", "15", "$15$", r"\boxed{\textbf{(B)}\ 15}", "(B) 15", r"\textbf{(B) }15", "B) $15$"),
    ),
    ("D", AMC, ("-5", "(D) -5", r"\textbf{(D)}\ -5", "- 5")),
    ("C", AMC, (r"\dfrac{1}{2}", r"(C) $\frac{1}{2}$")),
    (r"\textbf{(E)}\ 19", None, ("E", "19", "(E) 19")),
    ("B", None, ("B", "(B)")),
    ("C", ("C++", "Java", "C#"), ("C#", "c#", "C")),
    ("A", ("vitamin A", "vitamin", "vitamin B"), ("Vitamin A.",)),
]
RIGHT += [
    (
        "B",
        PLANETS,
        ("The answer is B. Venus", "The answer is B. It is the second planet.", "B. It is the second planet."),
    ),
    ("B", PLANETS, ("The answer is (B). Mars is farther away.", "The answer is B.\nMars is farther away.")),
    ("B, C", ("C#", "C", "C++", "c--"), ("BC", "B, C")),
    ("C", ("yes", "no", "?"), ("?", "C")),
]
WRONG: list[tuple[str, Choices, tuple[str, ...]]] = [
    (
        "B",
        PLANETS,
        ("A", "AB", "A or B", "A and B", "(A)(B)", "B C", "not B", "B?", "maybe B", "B. Mars", "B, Mars", "BB", "2"),
    ),
    (
        "B",
        PLANETS,
        ("B is wrong", "B is not correct", "All of the above", "Bananas", "Venus, Mars", "A man walks into B", ""),
    ),
    (
        "B",
        PLANETS,
        ("B. Wait, C", "B; no, C", "B-", "The answer is A. The answer is B.", "不选B", "答案不是B", "选B或C", "A和B"),
    ),
    (
        "A, C",
        PLANETS,
        ("A", "A, B, C", "ABC", "AD", "A or C", "not A, C", "A, C or D", "A, C, E", "AA", "A, Mars", "A-C"),
    ),
    ("A", PLANETS, ("A, A and B", "A man", "A. Venus")),
    (
        "B",
        PLANETS,
        ("The answer is B. Mars", "The answer is B. Mars is hot.", "B. It is Mars or so", "B. C is wrong maybe"),
    ),
    (
        "B",
        PLANETS,
        ("I doubt the answer is B", "不是~选B", "大约选B", r"Is it \boxed{B}?", r"\fbox{B, ...}", "B. Not sure at all"),
    ),
    ("A, B", PLANETS, ("A, B, ...", r"\fbox{A, B, ...}", "A, B (B?)")),
    ("B, C", ("C#", "C", "C++", "c--"), ("B B", "B", "(B) C")),
    ("C", ("yes", "no", "?"), ("", "yes")),
    ("2", NUMBERS, ("1", "x", "12", "1, 2")),
    ("1, 3", NUMBERS, ("1", "13", "1,2,3")),
    (r"\textbf{(B)}\ 15", AMC, ("A", "12", "(B) 12", "1,5", "15 or 12", "-15", "(C)")),
    ("D", AMC, ("5", "E", "(D) 5", "+5")),
    (r"\textbf{(E)}\ 19", None, ("D", "18", "(E) 18", "(D) 19", "A")),
    ("A", ("C++", "C", "C#"), ("C", "C#", "B")),
    ("A", ("vitamin A", "vitamin", "vitamin B"), ("vitamin",)),
    ("Jupiter", PLANETS, ("Jupiter",)),
]


@pytest.mark.parametrize(("gold", "choices", "answers"), RIGHT)
def test_an_option_may_be_named_in_many_ways(gold: str, choices: Choices, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if score(gold, answer, choices) != 1] == []


@pytest.mark.parametrize(("gold", "choices", "answers"), WRONG)
def test_other_options_and_too_many_are_wrong(gold: str, choices: Choices, answers: tuple[str, ...]) -> None:
    assert [answer for answer in answers if score(gold, answer, choices) != 0] == []


def test_options_that_have_no_letters_are_an_error_and_not_cut_off() -> None:
    with pytest.raises(ValueError, match="must be up to 26 texts in a list"):
        score("A", "A", [str(number) for number in range(27)])


DOGS = ("a dog", "no dog", "two dogs", "May 4, 1776")


@pytest.mark.parametrize(
    "text",
    [
        *("不是=选B", "≠ 选B", "un选B", "未必选B", "别选B", "不应该选B", "没选B", "是否选B", "难道选B", "如果选B"),
        *("他选B", "误选B", "为什么选B", "不~选B", "选B吗？", "错误答案是B", "他的答案是B", "如果答案是B"),
    ],
)
def test_a_chinese_choice_that_is_denied_doubted_or_another_one_s_is_none(text: str) -> None:
    assert score("B", text, PLANETS) == 0


@pytest.mark.parametrize(
    "text",
    [
        *(
            "因此选B",
            "所以应选B。",
            "故本题应选B",
            "综上，选 B",
            "我选B",
            "不是A，选B",
            "A不对。选B",
            "**选B**",
            "（选B）",
        ),
        *("∴选B", "最后答案选B。"),
    ],
)
def test_a_chinese_choice_begins_its_clause(text: str) -> None:
    assert score("B", text, PLANETS) == 1


@pytest.mark.parametrize(
    "lead", ["答案是~C{}. 30", "答案是C{}. 30", "The answer is ~C{}. 30", "The answer is (C). 30{}"]
)
@pytest.mark.parametrize("mark", ["", " "])
def test_a_label_beside_the_text_of_another_option_is_no_answer(lead: str, mark: str) -> None:
    choices = ("12", "20", "15", "30")
    assert score("C", lead.format(mark), choices) == 0
    assert score("D", lead.format(mark), choices) == 0


@pytest.mark.parametrize("style", ["~C.", "(C).", "**C**.", "**C.**", "$C$.", r"$\text{C}$.", r"\textbf{(C)}."])
def test_a_label_in_brackets_or_bold_face_and_its_text_must_agree(style: str) -> None:
    choices = ("12", "20", "15", "30")
    assert score("C", f"The answer is {style} 15", choices) == 1
    assert score("C", f"The answer is {style} 30", choices) == 0
    assert score("C", f"The answer is {style}", choices) == 1


@pytest.mark.parametrize("text", ["A, B...", "A, B…", "Mercury, Venus...", "AB..", "A and B ..."])
def test_a_list_that_goes_on_names_no_options(text: str) -> None:
    assert score("A, B", text, PLANETS) == 0


def test_an_article_after_no_is_a_denial_and_commas_are_written_freely() -> None:
    assert score("B", "no a dog", DOGS) == 0
    assert score("B", "no dog", DOGS) == score("A", "the dog", ("a dog", "cat")) == 1
    assert score("D", "May 4,1776", DOGS) == 1


@pytest.mark.parametrize("text", ["答案是1. 15", "The answer is 1. x - y", "答案：'1. -5'"])
def test_a_label_that_is_a_digit_may_not_stand_beside_the_text_of_another_option(text: str) -> None:
    options = {"1": "7", "2": "15", "3": "-5", "4": "x - y"}
    assert score("1", text, options) == 0
    assert score("1", "The answer is 1. 7", options) == 1


@pytest.mark.parametrize("text", ["答案：选1\n\n选2", "\\fbox{1}\n选2", "答案是1\n选2", "So #### 2\n\n\\fbox{1}"])
def test_two_statements_of_different_options_are_no_answer(text: str) -> None:
    assert score("1", text, NUMBERS) == 0
    assert score("1", text.replace("2", "1"), NUMBERS) == 1
