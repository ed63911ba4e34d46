"""Spelling of questions: what counts as the same one, so that nobody poses a held-out problem in other letters."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl.games.tasks.dataset import FileTask
from marl.games.tasks.normalization import normalize_question

QUESTION = "What is 2,000 + 25, divided by 1.5?"


@pytest.mark.parametrize(
    "same",
    [
        *(
            "what is 2000 + 25 divided by 1.5",
            "WHAT IS 2000+25, DIVIDED BY 1.5!!",
            "  What\tis 2 000 + 25\n divided by 1.50",
        ),
        *("What is two thousand + twenty-five, divided by one and a half?", "What is 2_000 + 025, divided by 3/2?"),
        *(
            "\uff37\uff48\uff41\uff54 is \uff12\uff10\uff10\uff10 \uff0b \uff12\uff15, divided by 1.5?",
            "What is \u200b2000 + 25 divided by 1\u00bd?",
        ),
        *(
            "**What** is (2000) + `25` [divided by *1.5*]?",
            "- What is 2000 plus 25: divided by 1.5",
            "\u201cWhat is 2\u2019000 + 25\u201d, divided by 1.5",
        ),
    ],
)
def test_case_spaces_punctuation_forms_and_numbers_do_not_make_another_question(same: str) -> None:
    assert normalize_question(same) == normalize_question(QUESTION)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            ("2 + 2", "2 - 2"),
            ("2 + 2", "2 * 2"),
            ("22", "2 2"),
            ("2.5", "25"),
            ("-5 + 3", "5 + 3"),
            ("x = 2", "x < 2"),
        ),
        *(
            ("What is 2 + 3?", "What is 3 + 2?"),
            ("a b", "ab"),
            ("x^2", "x2"),
            ("10", "100"),
            ("\u03b1", "a"),
            ("1/2", "1 2"),
        ),
    ],
)
def test_another_question_stays_another_one(one: str, other: str) -> None:
    assert normalize_question(one) != normalize_question(other)


@given(st.text(max_size=200))
def test_any_text_has_a_spelling_that_stays_the_same_in_capitals_and_with_more_spaces(text: str) -> None:
    assert isinstance(normalize_question(text), str)
    ascii_text = "".join(sign for sign in text if sign.isascii())
    assert normalize_question(f"  {ascii_text.upper()} \n") == normalize_question(ascii_text.lower())


@pytest.mark.parametrize("text", ["9" * 100_000, "one " * 25_000, "1," * 50_000, "-" * 100_000, "\u0301" * 100_000])
def test_long_texts_take_no_long_time(text: str) -> None:
    begun = time.process_time()
    normalize_question(text)
    assert time.process_time() - begun < 3


def questions(task: FileTask, split: str) -> set[str]:
    tasks = task.build()
    return {tasks.problem(split, index).question for index in range(tasks.problem_count(split))}  # type: ignore[arg-type]


def test_a_held_out_problem_is_neither_posed_nor_trained_on_in_another_spelling(tmp_path: Path) -> None:
    def file(name: str, *asked: str) -> Path:
        lines = [json.dumps({"question": question, "answer": "1"}) for question in asked]
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    train = file("train.jsonl", "Is 1,000 even?", "IS 1000 EVEN", "Is 10 even?", "is 10 even")
    task = FileTask(path=train, held_out_path=file("test.jsonl", "Is one thousand even?"), poses=True)
    assert questions(task, "held_out") == {"Is one thousand even?"}
    assert questions(task, "train") == {"Is 10 even?", "is 10 even"}, "rows of one split stay as they are"
    tasks = task.build()
    for spelled in ("is 1000 even", "Is \uff11\uff10\uff10\uff10 even ?", "Is 1 000 EVEN?!"):
        assert tasks.parse_posed_problem(json.dumps({"question": spelled, "answer": "yes"})) is None
    assert tasks.parse_posed_problem(json.dumps({"question": "Is 1001 even?", "answer": "no"})) is not None


def test_a_share_that_is_held_out_takes_the_other_spellings_of_its_rows_along(tmp_path: Path) -> None:
    rows = [
        {"question": form.format(n), "answer": n} for n in range(20) for form in ("Is it {}?", "is it {}", "IS IT {} !")
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = FileTask(path=tmp_path / "a.jsonl", held_out=8)
    train, held_out = questions(task, "train"), questions(task, "held_out")
    assert len(held_out) == 8
    assert not {normalize_question(question) for question in train} & {
        normalize_question(question) for question in held_out
    }
