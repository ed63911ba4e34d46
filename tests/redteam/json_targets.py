"""Targets whose answers are JSON: the last whole value counts, and types count."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from attack_search import CHANNELS, Gold, Puzzle, Target
from claims import ANYTHING, Claim, Events, anything, closes, mention, opens, same, spoil, thought, unsure, withdraws
from grammar import Grammar, Rules

from marl.core.plugins import find_plugin, known_kinds
from marl.protocols import VerifierConfig

_JSON: Rules = {
    "start": {same: ["@text", "@text", "@document"]},
    "text": {
        same: [
            *("@document", "@preface @document", "```json\n@document\n```", "```\n@document\n```"),
            *("@document\nThat is all.", "@document\n@document", "@preface\n@document\n@preface\n@document"),
            *("@document and then @document", "@text\n@text", "@preface", ""),
        ],
        thought: ["<think>@thoughts</think>"],
        opens: ["@document\n<think>@thoughts"],
        closes: ["@thoughts</think>"],
        withdraws: ["@document Wait, that is wrong.", "@document\nScratch that."],
    },
    "thoughts": {same: ["@document", "@text"]},
    "preface": {
        mention: ["Here it is:", "For example:", "Let me think.", "The JSON is", "Answer:", "Draft:"],
        anything: ["{answer}", "{", "]", '"'],
    },
    "document": {
        unsure: [
            *("@DOC,", "@DOC;", "@DOC\u200b", "// @DOC", "`@DOC`", "**@DOC**", "(@DOC)", "<answer>@DOC</answer>"),
        ],
        spoil: ["[@DOC]", "[@DOC, @DOC]", '{"answer": @DOC}', '{"a": [@DOC, @DOC]}', "{}", "[]", '{"x": 1, "x": 1}'],
        same: ["@DOC", "@DOC", "@NEAR", "@NEAR", " @DOC "],
        anything: [
            *('"@NEAR"', "[@NEAR, @DOC]", "@HALF", "@HALF @HALF", "{@DOC, @DOC}", "true", "NaN", "null", '{"x": NaN}'),
            *("@HALF @DOC", "@DOC @HALF", "@DOC}", "{{@DOC}}", r"\boxed{@DOC}", "[@DOC", "not @DOC {}"),
        ],
    },
}


def _value(rng: random.Random) -> dict[str, Any]:
    names_ = rng.sample(("a", "b", "n", "name", "ok", "items"), 3)
    makes: list[Callable[[], Any]] = [
        lambda: rng.randint(0, 9),
        lambda: rng.choice((0, 1)),
        lambda: bool(rng.randint(0, 1)),
        lambda: rng.choice(("x", "1", "", "true", "null")),
        lambda: [rng.randint(0, 3), rng.choice((None, "1", 1))],
        lambda: {"in": rng.choice((1, 1.5, "1", None, [], {}))},
    ]
    return {name: rng.choice(makes)() for name in names_}


_CONFUSED = {True: 1, False: 0, "1": 1, "": None, "true": True, "null": None, None: "", 1.5: "1.5"}


def _confuse(rng: random.Random, value: Any) -> Any:
    """Return a value of another type that looks alike, at one place of `value`."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return {**value, key: _confuse(rng, value[key])}
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [_confuse(rng, item) if place == i else item for i, item in enumerate(value)]
    if isinstance(value, dict | list):
        return [] if isinstance(value, dict) else {}
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice((str(value), bool(value), value + 1, [value], -value or None))
    return _CONFUSED.get(value, f"{value} ")


def _near(rng: random.Random, value: dict[str, Any]) -> str:
    """Return JSON, or text like it, that is not `value`."""
    text, key = json.dumps(value), next(iter(value))
    wrong = json.dumps(_confuse(rng, value))
    ways = (
        wrong,
        json.dumps({**value, "more": 1}),
        json.dumps({k: v for k, v in value.items() if k != key}),
        f'{{"{key}": "other", {text[1:]}',
        f'{text[:-1]}, "{key}": {json.dumps(value[key])}}}',
        f"{wrong} {{}}",
        text.replace('"', "'"),
        json.dumps({k.upper(): v for k, v in value.items()}),
        json.dumps([[k, v] for k, v in value.items()]),
        f"{text[:-1]}, {text[1:]}",
        json.dumps(text),
    )
    return rng.choice(ways)


def _documents(rng: random.Random) -> Puzzle:
    values = []
    while len(values) < 3:
        value = _value(rng)
        if not any(_same(value, other) for other in values):
            values.append(value)
    golds = [Gold(json.dumps(value), index) for index, value in enumerate(values)]
    texts = {
        "DOC": [(json.dumps(v, indent=rng.choice((None, 1))), [Claim(i)]) for i, v in enumerate(values)],
        "NEAR": [(text, _claims(text)) for v in values for text in [_near(rng, v)] if not _is_one_of(text, values)],
        "HALF": [(json.dumps(v)[: rng.randint(1, 12)], []) for v in values],
    }
    texts["NEAR"] = texts["NEAR"] or [("{}", [Claim(None)])]
    return Puzzle("Which record is it?", golds, rng.randrange(3), texts)


def _claims(text: str) -> Events:
    """Return a claim of nothing for one whole value that is no right one, and of anything for other text."""
    try:
        whole = isinstance(json.loads(text), dict | list)
    except ValueError:
        whole = False
    return [Claim(None if whole else ANYTHING)]


def _is_one_of(text: str, values: list[dict[str, Any]]) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return any(_same(value, other) for other in values)


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 is 1.0, but neither true nor "1"."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (one, other))
    return one == other and (type(one) is type(other) or numbers)


def targets(kind: str) -> list[Target]:
    """Return the target of `json`."""
    if kind != "json" or "json" not in known_kinds("verifiers"):
        return []
    check = find_plugin("verifiers", "json").model_validate({"kind": "json", "timeout_s": 5})
    assert isinstance(check, VerifierConfig)
    channels = {name: CHANNELS[name] for name in ("raw", "role whole")}
    return [Target("record", Grammar("start", _JSON), _documents, {"json": check}, channels, last_counts=True)]
