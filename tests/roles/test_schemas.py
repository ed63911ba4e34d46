"""Schemas of answers: no value that a model writes makes a check long, and no check raises."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from marl.roles.answering import SolverRole
from marl.roles.json_schema import check_schema, fits_schema


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < seconds


def fits(value: Any, schema: dict[str, Any]) -> bool:
    check_schema(schema)
    return fits_schema(value, schema)


BACKTRACKING = r"^(a+)+$"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": BACKTRACKING}, "a" * 50_000 + "!"),
        ({"pattern": "(.*)*=(.*)*;(x+x+)+y"}, "x" * 50_000),
        ({"pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}, "a" * 50_000),
        ({"patternProperties": {BACKTRACKING: {"type": "null"}}}, {"a" * 50_000 + "!": 1}),
        ({"additionalProperties": False, "patternProperties": {BACKTRACKING: {}}}, {"a" * 50_000 + "!": 1}),
        ({"propertyNames": {"pattern": BACKTRACKING}}, {"a" * 50_000 + "!": 1}),
        ({"items": {"pattern": BACKTRACKING}}, ["a" * 50 + "!"] * 1000),
        ({"uniqueItems": True}, [*range(50_000), None, [], {}, *map(str, range(50_000)), 0]),
        ({"uniqueItems": True}, [{"a": [i % 2, str(i)]} for i in range(30_000)] + [{"a": [1.0, "1"]}]),
        ({"format": "regex", "type": "null"}, "(a+)+" * 10_000),
    ],
)
def test_no_value_makes_a_check_long(schema: dict[str, Any], value: Any) -> None:
    check_schema(schema)
    with at_most(2):
        fitting = fits_schema(value, schema)
    assert fitting == ("patternProperties" in schema and "additionalProperties" not in schema)


TREE: dict[str, Any] = {
    "oneOf": [
        {"type": "number"},
        *(
            {"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}, "op": {"const": op}}}
            for op in ("add", "sub", "mul")
        ),
    ]
}


def nested(depth: int, leaf: Any) -> Any:
    return {"l": nested(depth - 1, leaf), "r": 1, "op": "mul"} if depth else leaf


def test_a_schema_that_refers_to_itself_several_times_is_followed_a_bounded_number_of_times() -> None:
    assert fits(nested(4, 1), TREE)
    assert not fits(nested(4, "x"), TREE)
    with at_most(5):
        assert not fits_schema(nested(30, "x"), TREE)
        assert not fits_schema(nested(30, 1), TREE)
    assert fits_schema(nested(4, 1), TREE), "what was spent on one value is not charged to the next"


def test_a_long_list_may_refer_to_a_part_of_the_schema_for_each_item() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}}
    with at_most(5):
        assert fits([1] * 20_000, schema)
        assert not fits([1] * 20_000 + ["x"], schema)


def test_a_schema_that_grows_by_references_is_refused_when_it_is_loaded() -> None:
    parts = {f"p{i}": {"allOf": [{"$ref": f"#/$defs/p{i + 1}"}] * 2} for i in range(40)}
    schema = {"$defs": {**parts, "p40": True}, "$ref": "#/$defs/p0"}
    with at_most(2), pytest.raises(ValueError, match="refers to itself without end"):
        check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"pattern": "(?=a)b"}, r"pattern '\(\?=a\)b' is not supported: it must match in linear time"),
        ({"properties": {"n": {"pattern": r"(a)\1"}}}, "is not supported"),
        ({"patternProperties": {"(?<!x)y": {}}}, "is not supported"),
        ({"pattern": "("}, "is not a 'regex'"),
        ({"unevaluatedProperties": False}, "has 'unevaluatedProperties', which is not supported; use additionalProp"),
        ({"items": {"unevaluatedItems": False}}, "has 'unevaluatedItems', which is not supported"),
        ({"pattern": "(a{1000}){1000}"}, "is not supported"),
        ({"$dynamicRef": "#nowhere"}, "refers to '#nowhere', which is not in it"),
    ],
)
def test_what_could_take_long_is_refused_when_it_is_loaded(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_schema(schema)
    with pytest.raises(ValueError, match=why):
        SolverRole.model_validate({"policy": "a", "answer": "json", "json_schema": schema})


@pytest.mark.parametrize(
    ("value", "unit", "multiple"),
    [
        (10**400, 0.5, True),
        (10**400 + 1, 2, False),
        (10**4000, 1e-308, True),
        (1e308, 1e-308, True),
        (1e-308, 1e308, False),
        (0.3, 0.1, True),
        (0.35, 0.1, False),
        (-7, 7.0, True),
        (0, 5, True),
        ("7", 5, True),
        (True, 5, True),
    ],
)
def test_multiples_of_any_size_are_told(value: Any, unit: float, multiple: bool) -> None:
    assert fits(value, {"multipleOf": unit}) == multiple


@pytest.mark.parametrize(
    ("value", "unique"),
    [
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False, None, "", [], {}, "0"], True),
        ([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}], False),
        ([[1], [True]], True),
        (["a", "b", "a"], False),
        ({"a": 1}, True),
    ],
)
def test_equal_items_are_found_as_json_compares_them(value: Any, unique: bool) -> None:
    assert fits(value, {"uniqueItems": True}) == unique
    assert Draft202012Validator({"uniqueItems": True}).is_valid(value) == unique


def test_our_keywords_agree_with_the_librarys_on_ordinary_values() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": r"^[a-z]\w*$"}, "n": {"multipleOf": 3}},
        "patternProperties": {"^x_": {"type": "integer"}, "y$": {"type": "string"}},
        "additionalProperties": {"type": "null"},
        "required": ["name"],
    }
    check_schema(schema)
    plain, names, values = Draft202012Validator(schema), ("name", "n", "x_1", "x_y", "sy", "z"), ("ab", "1", 3, 4, None)
    outcomes = []
    for first in names:
        for second in names:
            for one in values:
                for other in values:
                    value = {"name": "ok", first: one, second: other}
                    outcomes.append(fits_schema(value, schema))
                    assert outcomes[-1] == plain.is_valid(value), json.dumps(value)
    assert 50 < sum(outcomes) < len(outcomes) - 50


def test_lone_surrogates_fit_no_pattern_and_raise_nothing() -> None:
    assert not fits("\ud800", {"pattern": "."})
    assert fits({"\ud800": 1}, {"patternProperties": {".": {"type": "null"}}})
