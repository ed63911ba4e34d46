"""JSON answers: the last one counts, read strictly."""

from __future__ import annotations

import pytest

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.json_answers import JsonVerifier
from marl.games.verifiers.text_verifiers import JsonSchemaVerifier

RIGHT = {
    '{"a": 1}': [
        *(
            '{"a":1}',
            '{"a": 1.0}',
            '```json\n{"a": 1}\n```',
            'e.g. {"a": 0}, so {"a": 1}',
            '{"a": 0} Wait, no: {"a": 1}',
        ),
        *(
            '<think>{"a": 0}</think>{"a": 1}',
            '{"a": 1} of the set {1, 2}',
            '[see] {"a": 1}',
            'x in [0, 1) and {"a": 1}',
        ),
        *('x in [0, 1) and {"a": 1} in (2, 3]', '{"a": 0, {"a": 1}'),
    ],
    "[1, 2]": ["[1,2]", "[1.0, 2]", "so [1, 2]", "[3] then [1, 2]"],
    "3": ["3", "3.0"],
    "null": ["null"],
    '{"a": {"b": [true, "x"]}, "c": null}': ['{"c": null, "a": {"b": [true, "x"]}}'],
}
WRONG = {
    '{"a": 1}': [
        *(
            '{"a": 1} {"a": 2}',
            '{"a": 1, "a": 1}',
            '{"a": "1"}',
            '{"a": true}',
            '{"a": 1, "b": 2}',
            '[{"a": 1}]',
            "null",
            "",
        ),
        *(
            '{"a": 1}, no, wait',
            '{"a": 1} [1]',
            '{"a": 1} {"a": NaN}',
            '{"a": 1} {"a": 2,}',
            "{\"a\": 1} {'a': 2}",
            "1",
        ),
        *(
            '{"a": 1} {a: 2}',
            'not {"a": 1}',
            '{"x": {"a": 1}}',
            '{"a": 1',
            '<think>{"a": 1}</think>',
            '{"a": 1} is wrong',
        ),
        *('{"a": 1 // x\n}', '{"a": 1e999}', "[" * 50 + '{"a": 1}' + "]" * 50, '{"a":' * 100_000, "[" * 100_000),
    ],
    "[1, 2]": ["[2,1]", "[1,2,2]", "[1, 2] or [2, 1]", '{"a": [1, 2]}', "[[1, 2]]", "[1, 2,]", "1, 2"],
    "3": ['"3"', "the 3", "[3]", "true"],
    "true": ["1", "True", '"true"'],
    "": ["", "null"],
    "{": ["{", "{}"],
}


@pytest.mark.parametrize("gold", RIGHT)
def test_the_last_json_of_an_answer_is_compared_by_value(gold: str) -> None:
    assert [
        text for text in RIGHT[gold] if JsonVerifier()(VerifierCase(Problem("p", "", gold), text, text)).score != 1
    ] == []


@pytest.mark.parametrize("gold", WRONG)
def test_other_unreadable_and_withdrawn_json_is_wrong(gold: str) -> None:
    assert [
        text for text in WRONG[gold] if JsonVerifier()(VerifierCase(Problem("p", "", gold), text, text)).score != 0
    ] == []


def test_json_is_read_from_the_answer_or_from_the_text() -> None:
    case = VerifierCase(Problem("p", "", "[1]"), "[1]", None)
    assert JsonVerifier()(case).score == 0
    assert JsonVerifier(read="text")(case).score == 1


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"n": 1}', 1),
        ('Here: ```json\n{"n": 1}\n```', 1),
        ('{"n": "x"} {"n": 1}', 1),
        ('{"n": 1} {"n": "x"}', 0),
        ('{"n": 1, "n": 1}', 0),
        ('{"n": 1} is wrong', 0),
        ("[" * 100_000, 0),
    ],
)
def test_a_schema_is_put_to_the_last_json(text: str, score: float) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    assert JsonSchemaVerifier(accepts=schema)(VerifierCase(Problem("p", ""), "", text)).score == score


def test_a_schema_that_leads_nowhere_accepts_nothing() -> None:
    verdict = JsonSchemaVerifier(accepts={"$ref": "#"})(VerifierCase(Problem("p", ""), "", "{}"))
    assert verdict == Verdict(0.0, "the schema leads deeper than the value")


def test_a_long_value_is_not_quoted() -> None:
    verdict = JsonSchemaVerifier(accepts={"type": "integer"})(VerifierCase(Problem("p", ""), "", f'"{"x" * 500}"'))
    assert verdict == Verdict(0.0, "breaks 'type'")
