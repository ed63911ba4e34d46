"""What counts as a statement of an answer, and what takes it back: the same for every way of reading."""

# ruff: noqa: RUF001 (signs of other scripts are what is tested)

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl.core.types import Problem, VerifierCase
from marl.games.verifiers.answer_verifier import quote, unwrap
from marl.games.verifiers.numeric import NumericVerifier
from marl.games.verifiers.text_verifiers import ExactVerifier, PatternVerifier

PLAIN = [
    r"5",
    r'"5"',
    r"`5`",
    r"5.",
    r"Answer: 5",
    r"Ans: 5",
    r"ANSWER = 5",
    r"it is 5",
    r"Solution: 5",
    r"\text{5}",
    r"$5$",
    r"\boxed 5",
    "５",
    "ＡＮＳＷＥＲ：５",
    r"<answer>5</answer>",
    r"<answer>\boxed{5}</answer>",
    "答案：5",
    "答案是5。",
    "答：5",
    "（答案是5）",
    "#### 5",
    r"\[\boxed{5}.\]",
    "**5**",
    "**Answer: 5**",
]
PROSE = [
    "8 + 9 is more. The answer is 5.",
    "So, the final answer is 5",
    "Therefore, the correct answer is: **5**.",
    "We add.\n\n**Final Answer:** 5",
    "We add.\n\n**Final Answer**: $5$",
    "We add.\n\n**Final Answer**\n\n5",
    "We add.\n\n## Final Answer\n5",
    "We add.\n\n### Answer:\n\n\\[ 5 \\]",
    "Final Answer: The final answer is $5$. I hope it is correct.",
    "Let us see.\n#### 5",
    "We add, so it is **5**.",
    "因此答案为5。",
    "经过计算，答案：5。",
    "The answer is 5 because 2 + 3 is 5.",
    "(The answer is 5.)",
    "The answer to 2 + 3 is 5.",
    "The answer is:\n\n$$5$$",
    "I think the answer is 5",
    "If x = 1, then we add 4. The answer is 5.",
    "Is 7 even? No. The answer is 5. Thank you for waiting.",
    "The answer is 5.\n\nNo other values work. This is actually well known. We wait for nothing.",
    "<answer>We add. The answer is 5.</answer>",
    "The answer is the sum of both of them. Answer: 5",
]
TAKEN_BACK_BEFORE = [
    r"\boxed{4}. Wait, that's wrong. \boxed{5}",
    r"First \boxed{4}. Correction: \boxed{5}",
    "The answer is 4. Hmm, no, wait. The answer is 5.",
    "The answer is not 4. The answer is 5.",
    r"It is not \boxed{4}. It is \boxed{5}.",
    r"\boxed{4} is wrong. \boxed{5} is right.",
    "The answer is 4. I made a mistake. The answer is 5.",
    "答案是4。不对，答案是5。",
]
IN_THOUGHTS = [
    "<think>The answer is 4? No.</think> 5",
    "so it is 4</think>5",
    r"<think>\boxed{4}</think> So \boxed{5}.",
    "<think></think>5",
]


@pytest.mark.parametrize("text", [*PLAIN, *PROSE, *TAKEN_BACK_BEFORE, *IN_THOUGHTS])
@pytest.mark.parametrize("check", [ExactVerifier(), NumericVerifier()], ids=["exact", "numeric"])
def test_an_explicit_statement_is_the_answer(check: ExactVerifier | NumericVerifier, text: str) -> None:
    assert check(VerifierCase(Problem("p", "", "5"), text, text)).score == 1


WITHDRAWN = [
    *(
        "The answer is 5, no, 6.",
        "The answer is 5. No, 6.",
        "5. Wait, no.",
        r"\boxed{5}. Wait, no.",
        "Answer: 5\nActually no",
    ),
    *(r"\boxed{5}. Hmm, actually, that's not right.", r"\boxed{5}... but I was wrong", r"\boxed{5} scratch that"),
    *(r"\boxed{5}. On second thought, 6.", r"\boxed{5}. I mean 6.", r"\boxed{5}, I mean \boxed{6}"),
    *(
        r"\boxed{5}. Correction: 6",
        r"\boxed{5}. Sorry, it is 6.",
        r"\boxed{5}. My mistake: it is 6.",
        "The answer is 5. Never mind.",
    ),
    *(
        r"\boxed{5} is wrong",
        r"\boxed{5} is not the answer.",
        r"\boxed{5} isn't right",
        "The answer is 5. That is incorrect.",
    ),
    *("The answer is 5. This is a mistake.", "The answer is 5. Ignore that.", "The answer is 5 -- wait, 6"),
    *(
        "\\boxed{5}\n\nWait, let me recheck ... it is 6.",
        "<answer>5</answer> No, <answer>6</answer>",
        "<answer>5</answer> wait",
    ),
    *("答案是5。不对，答案是6。", "答案是5。等等，应该是6。", "The answer is 5. The answer is not 5."),
]
THOUGHT = [
    *(
        "<think>The answer is 5</think>",
        "<think>The answer is 5",
        "The answer is 5</think>",
        "The answer is 5</think> Well.",
    ),
    *(r"<think>\boxed{5}</think> nothing", "The answer is 5.</think>The answer is 4."),
]
SEVERAL = [
    *(
        r"\boxed{5} or \boxed{6}",
        r"\boxed{5}, \boxed{6}",
        r"\boxed{5} \boxed{6}",
        r"\boxed{5} or 6",
        r"\boxed{5} and 6",
    ),
    *(
        "The answer is 5 or 6.",
        "The answer is 5. Or 6.",
        "The answer is 5. Or maybe 6.",
        "The answer is 5. The answer is 6.",
    ),
    *(
        r"The answer is 5. \boxed{6}",
        r"\boxed{5}. The answer is 6.",
        "**5** and **6**",
        "#### 5\n#### 6",
        "Answer: 5, 6",
    ),
    *("<answer>5</answer><answer>6</answer>", "答案是5或6", "Answer: 6 (not 5)", r"\boxed{5}, 6"),
]
DOUBTED = [
    *(
        r"not \boxed{5}",
        r"The answer is not \boxed{5}",
        r"maybe \boxed{5}",
        "Perhaps the answer is 5.",
        "The answer is probably 5.",
    ),
    *(
        "The answer might be 5.",
        "The answer is 5?",
        r"\boxed{5}?",
        r"Is it \boxed{5}?",
        "I doubt the answer is 5.",
        "大约\\boxed{5}",
        "不是~\\boxed{5}",
        "If the answer is 5, then we are done.",
        "The answer isn't 5.",
    ),
    *("Whether the answer is 5 is unknown.", "The answer is 5. I am not sure.", "The answer is 5. Just kidding."),
    *("The answer is never 5.", "The answer is between 4 and 5", "答案不是5", "答案可能是5", "The wrong answer is 5."),
    *(
        "Tom's answer is 5.",
        'He said "The answer is 5". It is 6.',
        "It is tempting to say that the answer is 5, but it is 6.",
    ),
]
NOT_STATED = [
    *(
        "I would say 5",
        "8 + 9 = 5 and so on",
        "5 is what they all say",
        "the answer",
        "Answer:",
        "Let me redo this. 5",
        "5!",
    ),
    *(r"The answer is \boxed{}", r"\boxed{5", r"\boxed{} 5", "<answer>5"),
]
PART_OF_A_FORMULA = [
    *(
        r"\boxed{5}6",
        r"-\boxed{5}",
        r"- \boxed{5}",
        r"1/\boxed{5}",
        r"\boxed{5}^2",
        r"2\boxed{5}",
        r"2 \cdot \boxed{5}",
    ),
    *(r"\boxed{5} \times 10^3", r"x \ne \boxed{5}", r"\boxed{5}{6}"),
]


@pytest.mark.parametrize("text", [*WITHDRAWN, *THOUGHT, *SEVERAL, *DOUBTED, *NOT_STATED, *PART_OF_A_FORMULA])
@pytest.mark.parametrize("read", ["answer", "boxed", "last_line"])
def test_what_is_taken_back_thought_doubted_or_not_stated_is_no_answer(read: str, text: str) -> None:
    assert ExactVerifier.model_validate({"read": read})(VerifierCase(Problem("p", "", "5"), text, text)).score == 0


@pytest.mark.parametrize(
    "text",
    [
        r"We get \boxed{5} and this completes the proof.",
        r"Adding gives \[\boxed{5}.\]",
        r"Adding gives $\boxed 5$ in all? No doubt.",
        r"The angle is $\boxed{5}^\circ$.",
        r"\boxed{4}. Wait, that is wrong: \boxed{5}",
        "\\boxed{5}\n\nNo other values work.",
        r"\fbox{5}",
        r"First \boxed{5}. Checked: \boxed{5}.",
    ],
)
def test_a_box_is_read_from_the_whole_text(text: str) -> None:
    assert ExactVerifier(read="boxed")(VerifierCase(Problem("p", "", "5"), text, None)).score == 1


@pytest.mark.parametrize(
    "text", ["4 + 1\nThe answer is 5.", "<think>4\n</think>\n5\n", "17. Wait, no.\nThe answer is 5."]
)
def test_the_last_line_is_read_outside_of_thoughts(text: str) -> None:
    assert ExactVerifier(read="last_line")(VerifierCase(Problem("p", "", "5"), text, None)).score == 1


def test_one_answer_in_two_spellings_is_judged_by_both() -> None:
    problem = Problem("p", "How many apples?", "5")
    for text, score in ((r"The answer is five. \boxed{5}", 1), (r"The answer is six. \boxed{5}", 0)):
        assert NumericVerifier()(VerifierCase(problem, text, text)).score == score


@pytest.mark.parametrize(
    "gold", ["No, thank you", "Wait for me, actually", "The answer is blowing in the wind", "maybe"]
)
def test_the_right_answer_word_for_word_is_right_whatever_its_words_are(gold: str) -> None:
    assert ExactVerifier()(VerifierCase(Problem("p", "", gold), gold, gold)).score == 1


@pytest.mark.parametrize("text", ["Answer: No.", "The answer is no.", "**Final answer:** No, because it is odd."])
def test_no_may_be_an_answer(text: str) -> None:
    assert ExactVerifier()(VerifierCase(Problem("p", "", "no"), text, text)).score == 1


@pytest.mark.parametrize(
    ("text", "plain"), [("#5", "#5"), ("# 5", "# 5"), ("## 5", "5"), ("C#", "C#"), ("“Paris”", "Paris"), ("$5", "$5")]
)
def test_only_marks_without_a_meaning_are_unwrapped(text: str, plain: str) -> None:
    assert unwrap(text) == plain


def test_a_pattern_without_a_right_answer_is_never_met() -> None:
    assert PatternVerifier(pattern="(the )?{answer}.?")(VerifierCase(Problem("p", ""), "x", "x")).score == 0


def test_a_quotation_is_short_and_shows_what_a_terminal_would_obey() -> None:
    assert quote("5\x1b[2J") == r"'5\x1b[2J'"
    assert len(quote("x" * 1000)) < 90
    assert quote("\ud800").isascii()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Hence the n-th term is $2n+1$.",
            r"We add. Thus, the value we look for equals \(2n+1\)",
            "Work.\nSo it is $2n+1$.",
        ),
        *("1 + 2 = 3. Therefore the two sums are $2n+1$.", "The term is $2n+1$.", "We obtain $2n+1$."),
        "So the sum of $n$ and $n+1$ is $2n+1$.",
    ],
)
def test_a_last_sentence_that_concludes_with_a_formula_states_it(text: str) -> None:
    assert ExactVerifier()(VerifierCase(Problem("p", "", "2n+1"), text, text)).score == 1


@pytest.mark.parametrize(
    "text",
    [
        *("Hence the term is not $2n+1$.", "Hence it is not true that the term is $2n+1$.", "So is the term $2n+1$?"),
        *("Hence the term is $2n+1$?", "So if it grows, the term is $2n+1$.", "Thus the term is probably $2n+1$."),
        *(
            "Perhaps thus the term is about $2n+1$.",
            "So it may be that the term is $2n+1$.",
            "So she needs 2n+1 tiles.",
        ),
        *(
            "Hence the term is $2n+1$. It grows.",
            "So his first guess is $2n+1$.",
        ),
        *(
            "Hence the term is $2n+1$ or $2n$.",
            "I suspect the term is $2n+1$.",
            "So people say that the term is $2n+1$.",
        ),
        r"Hence the term is $2n+1$ and \boxed{4}",
    ],
)
def test_a_conclusion_that_is_denied_hedged_asked_or_not_the_end_states_nothing(text: str) -> None:
    assert ExactVerifier()(VerifierCase(Problem("p", "", "2n+1"), text, text)).score == 0


@pytest.mark.parametrize("read", ["answer", "boxed"])
def test_what_one_first_thought_is_withdrawn(read: str) -> None:
    text = r"I first thought \boxed{4}, but the radius is 2, so the area is \boxed{5}."
    check = ExactVerifier.model_validate({"read": read})
    assert check(VerifierCase(Problem("p", "", "5"), text, text)).score == 1
    assert check(VerifierCase(Problem("p", "", "4"), text, text)).score == 0


MARKS = [
    *(
        "the answer is ",
        "answer: ",
        "the answer to 5 ",
        "**",
        "**a**",
        "#### ",
        "wait ",
        "no, ",
        "答案是",
        "选B",
        "U.S.",
        "so the thus is ",
        "I first thought ",
        "So it is $5$",
        "is it ",
        "?",
        "~C. ",
        "answer is $$",
    ),
    *(
        "not ",
        "maybe ",
        "hmmm",
        ", ",
        "or ",
        "that is wrong ",
        "<answer>",
        "</answer>",
        "\\boxed{",
        "\\boxed{5}",
        "\\boxed 5 ",
    ),
    *(
        "{",
        "}",
        "because ",
        "５",
        "\\text{",
        "$",
        "\\",
        "<think>",
        "</think>",
        "I take it back. ",
        "\n",
        " ",
        "5",
        ".",
        "(",
        "\ud800",
    ),
]


@pytest.mark.parametrize("read", ["answer", "boxed", "last_line"])
def test_the_time_to_read_an_answer_grows_no_faster_than_the_text(read: str) -> None:
    check = ExactVerifier.model_validate({"read": read})
    for unit in MARKS:
        for text in (unit * (20_000 // len(unit)), "The answer is " + unit * (20_000 // len(unit))):
            started = time.process_time()
            check(VerifierCase(Problem("p", "", "5"), text, text))
            assert time.process_time() - started < 0.5, f"{unit!r} repeated"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=5), max_size=12).map("".join))
def test_no_text_makes_a_reading_raise(text: str) -> None:
    for read in ("answer", "boxed", "last_line"):
        check = ExactVerifier.model_validate({"read": read})
        assert check(VerifierCase(Problem("p", "", "zqx"), text, text)).score == 0 or "zqx" in text


@pytest.mark.parametrize(
    "text",
    [
        "Answer: 5\nThe answer is not \\boxed{9/11}",
        "The answer is 2/11.\nThe answer is not \\boxed{9/11}.",
        "The answer is 5. The answer isn't \\boxed{9/11}",
        "答案是5。答案不是\\boxed{9/11}",
    ],
)
def test_a_denial_that_takes_an_answer_back_denies_the_next_one_too(text: str) -> None:
    assert NumericVerifier()(VerifierCase(Problem("0", "", "9/11"), text, text)).score == 0
