"""JSON that a model wrote somewhere in its text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl.text.json_text import last_json_object_or_array, last_json_value, parse_strict_json


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 1}', "NaN", "-Infinity", "1e999", "[" * 33 + "]" * 33, "9" * 5000, "{'a': 1}", "", "1 2"]
)
def test_what_is_no_strict_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_strict_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ('"x"', "x"),
        ("null", None),
        ("[1] [2]", [2]),
        ('[1] {"a": [2]}', {"a": [2]}),
        ('so {"a": "}"} and "}"', {"a": "}"}),
        ("see [the table] after [1]", [1]),
        ("[1] see [the table]", [1]),
        (r"\[ x \] [1] \{2\}", [1]),
    ],
)
def test_all_of_a_text_or_its_last_structure_is_read(text: str, value: object) -> None:
    assert last_json_value(text) == value


@pytest.mark.parametrize(
    "text", ["[1] [2,]", '[1] {"a": }', "[1] is wrong", "not [1]", "<think>[1]</think>", "{1, 2}", "x", '{"a": [1}']
)
def test_an_earlier_structure_does_not_stand_in_for_the_last(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        last_json_value(text)


MARKS = ["{", "}", "[", "]", '"', "\\", ",", ":", "a", "1", " ", '{"a":', "[1]", "{}", "\n", "no, ", "\ud800"]


def test_the_time_to_find_json_grows_no_faster_than_the_text() -> None:
    for unit in MARKS:
        for text in (unit * 30_000, "[" + unit * 30_000, '{"' + unit * 30_000 + "}"):
            started = time.process_time()
            with pytest.raises(ValueError, match=r"\w"):
                last_json_object_or_array(text + "{a:}")
            assert time.process_time() - started < 3, f"{unit!r} repeated"


@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_raises_anything_but_value_errors(text: str) -> None:
    try:
        value = last_json_value(text)
    except ValueError:
        return
    assert value is None or isinstance(value, bool | int | float | str | list | dict)
