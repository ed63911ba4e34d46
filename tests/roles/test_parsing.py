"""Readers of model output: what they read, what they refuse, and that no text makes them raise or slow."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from marl.protocols import Tool
from marl.roles import parsing
from marl.roles.answering import PlayerRole, SolverRole
from marl.roles.json_schema import check_schema

Case = tuple[str, str | None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  42 ", "42"),
        ("<think>a</think>42", "42"),
        ("a <think>b</think> c <think>d</think> e", "a   c   e"),
        ("42 <think>never closed", "42"),
        ("the block was opened in the prompt</think>42", "42"),
        ("<think>a <think> b</think> c</think>42", "42"),
        ("<think>42", ""),
        ("<thi<think>x</think>nk>42", "<thi nk>42"),
        ("</think>", ""),
    ],
)
def test_thoughts_are_not_spoken(text: str, expected: str) -> None:
    assert parsing.remove_thoughts_and_strip(text) == expected
    assert parsing.remove_thoughts_and_strip(expected) == expected


TAGS: list[Case] = [
    ("<answer>42</answer>", "42"),
    ("so <answer>\n 4 2 \n</answer> it is", "4 2"),
    ("<answer>42</answer> again: <answer> 42</answer>", "42"),
    ("<think><answer>41</answer></think><answer>42</answer>", "42"),
    ("<answer>a < b > c</answer>", "a < b > c"),
    ("<answer>41</answer> Wait, <answer>42</answer>", "42"),
    ("not <answer>41</answer> but <answer>42</answer>", "42"),
    ("Actually, I know: <answer>42</answer>. No other value works.", "42"),
    ("<answer>No, wait</answer>", "No, wait"),
    ("<answer>42</answer> Wait, that is wrong.", None),
    ("<answer>42</answer> is wrong", None),
    ("not <answer>42</answer>", None),
    ("<answer>41</answer><answer>42</answer>", None),
    ("<answer></answer>", None),
    ("<answer> \n </answer>", None),
    ("<answer></answer><answer>42</answer>", None),
    ("<answer><answer>42</answer></answer>", None),
    ("<answer>42", None),
    ("42</answer>", None),
    ("</answer>42<answer>", None),
    ("<answer>42</answer> <answer>", None),
    ("I use <answer> tags: <answer>42</answer>", None),
    ("<ANSWER>42</ANSWER>", None),
    ("<answers>42</answers>", None),
    ("<think><answer>42</answer>", None),
    ("the answer is 42", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), TAGS)
def test_a_tag_holds_one_answer(text: str, answer: str | None) -> None:
    assert parsing.text_in_tag(text, "answer") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{42}", "42"),
        (r"so \boxed{ 42 }.", "42"),
        (r"\boxed {42}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{41} no, \boxed{42}", "42"),
        (r"\boxed{42}, so \boxed{42}", "42"),
        (r"\boxed 42", "42"),
        (r"\boxed{41} \boxed{42}", None),
        (r"\boxed{41} and \boxed{42", None),
        (r"\boxed{42}. Wait, no.", None),
        (r"not \boxed{42}", None),
        (r"-\boxed{42}", None),
        (r"Is it \boxed{42}?", None),
        (r"Is \boxed{42} right?", None),
        (r"So, could it be that it is \boxed{42}, then?", None),
        (r"We add. Are they $\boxed{42}$ in all?", None),
        (r"Is it even? Yes. So \boxed{42}", "42"),
        (r"Adding gives $\boxed{42}$ in all? No doubt.", "42"),
        (r"At first I thought \boxed{41}, but it is \boxed{42}.", "42"),
        (r"maybe \boxed{42}", None),
        (r"\boxed{42} or so", None),
        (r"\boxed{42}^2", None),
        (r"\boxed{x \boxed{3}}", r"x \boxed{3}"),
        (r"let f = { and \boxed{4}", "4"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"} \boxed{4}", "4"),
        (r"\boxed{}", None),
        (r"\boxed{41} \boxed{}", None),
        (r"\boxed{ }, so it is 42", None),
        (r"\boxed{42", None),
        (r"\boxed42}", None),
        (r"<think>\boxed{42}</think>", None),
        ("boxed{42}", None),
        ("", None),
    ],
)
def test_a_box_holds_one_answer(text: str, answer: str | None) -> None:
    assert parsing.text_in_box(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("[80 5]", "80 5"),
        ("so [ 85 ].", "85"),
        ("[85] yes, [85]", "85"),
        ("[] [85]", "85"),
        ("[[85]]", "85"),
        ("[86] no, [85]", "85"),
        ("I will not play [86]. [85]", "85"),
        ("<think>[86]</think>[85]", "85"),
        ("[85] is wrong", None),
        ("[85]. Wait, no.", None),
        ("[85] or [86]", None),
        ("[85\n]", None),
        ("[85", None),
        ("85]", None),
        ("[]", None),
    ],
)
def test_brackets_hold_one_answer(text: str, answer: str | None) -> None:
    assert parsing.text_in_brackets(text) == answer


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("```python\nx = 1\n```\nbetter:\n```python\n  x = 2  \n\ny\n\n```", "  x = 2  \n\ny"),
        ("```python\nx = 1\n```\n```json\n{}\n```", "x = 1"),
        ("````python\n```\nx\n```\n````", "```\nx\n```"),
        ("```Python\r\nx = 1\r\n```", "x = 1"),
        ("  ```python\nx = 1\n  ```", "x = 1"),
        ("```python\nx = 1", None),
        ("```python\n\n```", None),
        ("```python\nx\n```\nWait, that is wrong:\n```python\ny\n```", "y"),
        ("```python\nwait = 1\n# no, wait\n```\nWe wait for nothing.", "wait = 1\n# no, wait"),
        ("<think>```python\nx\n```</think>\n```python\ny\n```", "y"),
        ("```python\nx\n```\nWait, that is wrong.", None),
        ("```python\nx\n```\n```python\n```", None),
        ("```json\n{}\n```", None),
        ("use ```x = 1``` here", None),
        ("x = 1", None),
    ],
)
def test_code_stands_in_the_last_block_of_its_language(text: str, code: str | None) -> None:
    assert parsing.last_code_block(text, "python") == code


def test_a_block_of_any_language_is_read_if_none_is_asked_for() -> None:
    assert parsing.last_code_block("```json\n{}\n```") == "{}"


@pytest.mark.parametrize("code", ["x", "```\nx\n```", "  x\n\n```` y", "a ``` b", "```python"])
def test_code_that_holds_fences_is_fenced_with_longer_ones(code: str) -> None:
    assert parsing.last_code_block(parsing.format_code_block(code, "python"), "python") == code


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('so ```json\n{"a": [1, {"b": "}"}]}\n``` ok', {"a": [1, {"b": "}"}]}),
        ('{"a": 1} {"a": 2}', {"a": 2}),
        ('{"a": 1} Wait, {"a": 2}', {"a": 2}),
        ('the set {1, 2} and {"a": 1}', {"a": 1}),
        ('{"a": 1} as in the set {1, 2}', {"a": 1}),
        ('x in [0, 1) and {"a": 1} in (2, 3]', {"a": 1}),
        ('{"a": 1}, no, wait', None),
        ('{"a": 1} {"a": 2,}', None),
        ('[{"a": 1}, {"a": 2}]', None),
        ('{"a": 1} [{"a": 2}]', None),
        ('f = { and {"a": 1}', {"a": 1}),
        ('5" of {"a": "\\"{"}', {"a": '"{'}),
        ("{}", {}),
        ('<think>{"a": 1}</think>{"a": 2}', {"a": 2}),
        ('{"a": NaN}', None),
        ('{"a": -Infinity}', None),
        ('{"a": 1e999}', None),
        ('{"a": 1, "a": 2}', None),
        ('{"a": {"b": 1, "b": 1}}', None),
        ("{'a': 1}", None),
        ('{"a": 1', None),
        ('{"a": 1,}', None),
        ('[{"a": 1}', {"a": 1}),
        ("[1]", None),
        ('"{}"', {}),
        ('{"a": ' + "9" * 5000 + "}", None),
        ("", None),
    ],
)
def test_the_last_json_object_is_read_strictly(text: str, value: object) -> None:
    assert parsing.last_json_object(text) == value


def test_an_object_must_fit_its_schema() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 0}}}
    assert parsing.last_json_object('{"n": 3}', schema) == {"n": 3}
    assert parsing.last_json_object('{"n": -3}', schema) is None
    assert parsing.last_json_object('{"m": 3}', schema) is None
    assert parsing.last_json_object('{"n": 3} {"m": 3}', schema) is None, "the last object is the answer"


def test_a_schema_that_refers_to_itself_follows_a_value_down() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}}, "additionalProperties": False}
    check_schema(tree)
    assert parsing.last_json_object('{"left": {"left": {}}}', tree) == {"left": {"left": {}}}
    assert parsing.last_json_object('{"left": {"right": {}}}', tree) is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objct"}, "not a JSON schema: 'objct'"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "refers to '#/\\$defs/b', which is not in it"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "refers to 'http://127.0.0.1:9/x'"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"const": {1, 2}}, "not a JSON schema: Object of type set"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_schema(schema)


@pytest.mark.parametrize(
    ("text", "low", "high", "value"),
    [
        ("0.7", 0, 1, 0.7),
        (" 7. ", 0, 10, 7),
        ("**7**", 0, 10, 7),
        (".5", 0, 1, 0.5),
        ("7/10", 0, 1, 0.7),
        ("7 / 10", 1, 10, 7),
        ("3/5", 0, 10, 6),
        ("7 out of 10", 0, 1, 0.7),
        ("70%", 0, 1, 0.7),
        ("Good work.\nScore: 7/10\nBye.", 0, 10, 7),
        ("Score: **7**, for 3 reasons", 0, 10, 7),
        ("**Rating:** 7", 0, 10, 7),
        ("The score is 7. Final score: 7/10.", 0, 10, 7),
        ("<score>7</score> of 3 tries", 0, 10, 7),
        ("<score> 7/10 </score>", 0, 1, 0.7),
        ("<think>Score: 2</think>Score: 7", 0, 10, 7),
        ("Score: 2. No, wait. Score: 7", 0, 10, 7),
        ("<score>2</score> Actually, <score>7</score>", 0, 10, 7),
        ("Score: 7. Scratch that.", 0, 10, None),
        ("<score>7</score> is wrong", 0, 10, None),
        ("-3", -5, 5, -3),
        ("11", 0, 10, None),
        ("-1", 0, 10, None),
        ("12/10", 0, 1, None),
        ("7/0", 0, 10, None),
        ("Score: 7. Score: 8", 0, 10, None),
        ("<score>7</score><score>8</score>", 0, 10, None),
        ("<score>7", 0, 10, None),
        ("<score></score> Score: 7", 0, 10, None),
        ("<score>seven</score>", 0, 10, None),
        ("Score: 7-8", 0, 10, None),
        ("Score: 7 or 8", 0, 10, None),
        ("Score: 0,7", 0, 10, None),
        ("Score: 7th", 0, 10, None),
        ("Score: 1e1", 0, 10, None),
        ("The score is not 7", 0, 10, None),
        ("I found 3 mistakes", 0, 10, None),
        ("7 8", 0, 10, None),
        ("nan", 0, 10, None),
        ("inf", 0, 10, None),
        ("\u0667", 0, 10, None),
        ("9" * 400, 0, math.inf, None),
        ("", 0, 1, None),
    ],
)
def test_a_score_is_one_number_in_its_range(text: str, low: float, high: float, value: float | None) -> None:
    assert parsing.parse_labelled_or_bare_score(text, low, high) == (
        pytest.approx(value) if value is not None else None
    )


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("yes", "yes"),
        (" Yes. ", "yes"),
        ("**NO**", "no"),
        ("(no)", "no"),
        ("<think>no</think> yes!", "yes"),
        ("not yes", None),
        ("yes, no", None),
        ("the answer is yes", None),
        ("yesno", None),
        ("", None),
        ("...", None),
    ],
)
def test_a_choice_is_an_option_and_nothing_else(text: str, option: str | None) -> None:
    assert parsing.match_option(text, ("yes", "no")) == option


def test_options_that_differ_by_case_only_must_be_spelt_out() -> None:
    assert parsing.match_option("a", ("a", "A")) == "a"
    assert parsing.match_option("B", ("b", "A")) == "b"
    assert parsing.match_option("é", ("É", "é ")) == "É"
    assert parsing.match_option("bB", ("bb", "BB")) is None
    assert parsing.match_option("[5]", ("[5]", "5")) == "[5]"


def test_a_line_and_the_whole_are_read_without_blanks() -> None:
    assert parsing.last_line("a\n b \n \n") == "b"
    assert parsing.last_line(" \n ") is None
    assert parsing.full_text_without_thoughts(" a\nb ") == "a\nb"
    assert parsing.full_text_without_thoughts("<think>a") is None


def test_a_move_that_a_player_only_thinks_of_or_takes_back_is_not_played() -> None:
    player = PlayerRole(policy="p")
    assert player.parse("<think>[left]</think>[right]", ("left", "right")) == "right"
    assert player.parse("<think>[left]", ("left", "right")) is None
    assert player.parse("[left] Wait, [right]", ("left", "right")) == "right"


CALL = {"name": "python", "arguments": {"code": "print(1)"}}


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (f"<tool_call>{json.dumps(CALL)}</tool_call>", CALL),
        (f"Let me see.\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>", CALL),
        (f"<tool_call>{json.dumps(CALL | {'id': 'x'})}</tool_call>", CALL),
        (f'<tool_call>{json.dumps(CALL)}</tool_call><tool_call>{{"name": 3}}</tool_call>', None),
        ('<tool_call>{"name": "python", "name": "python", "arguments": {}}</tool_call>', None),
        (f"<tool_call>{json.dumps(CALL)}", None),
        (f"<think><tool_call>{json.dumps(CALL)}</tool_call></think>", None),
        (f"<tool_call>call {json.dumps(CALL)}</tool_call>", None),
        ('<tool_call>{"name": "python"}</tool_call>', None),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', None),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', None),
        ('<tool_call>{"name": "python", "arguments": "{}"}</tool_call>', None),
        ("<tool_call>[]</tool_call>", None),
        ("<tool_call></tool_call>", None),
        (json.dumps(CALL), None),
    ],
)
def test_a_tool_is_called_by_name_with_an_object_of_arguments(text: str, call: object) -> None:
    assert parsing.parse_tool_calls(text) == (call and [call])
    assert parsing.has_tool_call(text) == ("tool_call" in parsing.remove_thoughts_and_strip(text))


def test_an_answer_may_call_several_tools() -> None:
    text = f'<tool_call>{json.dumps(CALL)}</tool_call>\n<tool_call>{{"name": "now", "arguments": {{}}}}</tool_call>'
    assert parsing.parse_tool_calls(text) == [CALL, {"name": "now", "arguments": {}}]
    solver = SolverRole(policy="p", tools=(Tool(name="python"), Tool(name="now")))
    move = solver.parse(text, None)
    assert move == 'call [{"name":"python","arguments":{"code":"print(1)"}},{"name":"now","arguments":{}}]'
    assert solver.parse(solver.phrase(move), None) == move


SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#"}}}
READERS: dict[str, Callable[[str], object]] = {
    "tag": lambda text: parsing.text_in_tag(text, "answer"),
    "boxed": parsing.text_in_box,
    "bracketed": parsing.text_in_brackets,
    "last_code_block": parsing.last_code_block,
    "last_json_object": lambda text: parsing.last_json_object(text, SCHEMA),
    "parse_json_value": parsing.parse_json_value,
    "score": lambda text: parsing.parse_labelled_or_bare_score(text, 0, 10),
    "choice": lambda text: parsing.match_option(text, ("yes", "no")),
    "last_line": parsing.last_line,
    "whole": parsing.full_text_without_thoughts,
    "tool_call": parsing.parse_tool_calls,
}
REPEATED = [
    "<answer>", "</answer>", "<answer></answer>", "<think>", "</think>", "<think></think>", "<tool_call>", "<",
    "\\boxed{", "{", "}", "{}", "\\{", "\\", "[", "]", "[a", "[]", '"', '\\"', '"\\', '{"a":', '[{"a":', "`", "```\n",
    "```x\n", "```" + " " * 50, " ", "\n", "\t\n", "score", "score: ", "score is 1", "7/", "1", "1.", "-", "*", "_",
    "%", "score:" + " " * 50, "1 out of ",
    "wait, ", "no. ", "not ", "hmmm", "that is wrong", "not [5]", "\\boxed 5",
    "yes", "\0", "\ud800", "\u2028", "é", "-1 ", "(?", "{'",
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.one_in(3)
def test_the_time_to_read_grows_no_faster_than_the_text(reader: str) -> None:
    for unit in REPEATED:
        for text in (unit * (100_000 // len(unit)), "{" + unit * (100_000 // len(unit)) + "`"):
            started = time.process_time()
            READERS[reader](text)
            assert time.process_time() - started < 5, f"{unit!r} repeated"


@pytest.mark.parametrize("opened", ["{" * 100_000, '{"a":' * 100_000, "[" * 100_000, "\\boxed{" * 100_000])
@pytest.mark.parametrize("reader", READERS)
def test_deep_nesting_is_unreadable_and_nothing_worse(reader: str, opened: str) -> None:
    closed = opened + ("]" if "[" in opened else "}") * 100_000
    for text in (opened, closed, f"<tool_call>{closed}</tool_call>"):
        READERS[reader](text)


def rubble(rng: random.Random) -> str:
    """Marks, numbers and words in any order."""
    words = [*REPEATED, "42", "Yes", "Score: ", "<score>", "</score>", "name", "arguments", ":", ",", "python"]
    return "".join(rng.choice(words) for _ in range(rng.randrange(30)))


@pytest.mark.parametrize("reader", READERS)
def test_no_text_makes_a_reader_raise(reader: str) -> None:
    rng = random.Random(reader)
    for _ in range(2000):
        READERS[reader](rubble(rng))


def test_json_that_is_written_is_read_again_as_it_was() -> None:
    for value in ({"a": "<think>"}, {"</think>": "<tool_call>\\<think>"}, {"a": "\ud800x"}, {"é": [1.5, None, True]}):
        text = parsing.compact_json(value)
        assert parsing.last_json_object(text) == value
        assert text.encode()
        assert parsing.compact_json(parsing.last_json_object(text)) == text
