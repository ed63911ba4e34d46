from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from marl.core.types import Problem, Verdict, VerifierCase
from marl.games.verifiers.mathematics import MathVerifier
from marl.games.verifiers.number_words import read_words
from marl.games.verifiers.numeric import NumericVerifier, measure
from marl.games.verifiers.text_verifiers import (
    ChoiceVerifier,
    ExactVerifier,
    FormatVerifier,
    JsonSchemaVerifier,
    LengthVerifier,
    PatternVerifier,
)
from marl.games.verifiers.units import read_unit
from marl.protocols import VerifierConfig

GRADERS = [ExactVerifier(), ChoiceVerifier(), NumericVerifier(), MathVerifier(), PatternVerifier(pattern="{answer}")]


def case(text: str, answer: str | None = None, gold: str = "B", **facts: object) -> VerifierCase:
    return VerifierCase(Problem("p", "", gold, facts={"choices": ["x", "y"], **facts}), text, answer)


@pytest.mark.parametrize("check", GRADERS, ids=lambda check: check.kind)
def test_an_answer_that_the_role_could_not_read_is_wrong_whatever_the_text_says(check: VerifierConfig) -> None:
    assert check(case("B", None)).score == 0


@pytest.mark.parametrize(
    "check", [ExactVerifier(), NumericVerifier(), MathVerifier(), ChoiceVerifier()], ids=lambda check: check.kind
)
def test_a_problem_without_an_answer_is_never_solved(check: VerifierConfig) -> None:
    verdict = check(case("", "", gold=""))
    assert verdict.score == 0
    assert verdict.why


@pytest.mark.parametrize("read", ["answer", "boxed", "last_line"])
@pytest.mark.parametrize("kind", [ExactVerifier, NumericVerifier, MathVerifier])
def test_a_phrased_answer_is_found_where_it_is_looked_for(kind: type[VerifierConfig], read: str) -> None:
    check = kind.model_validate({"kind": kind.model_fields["kind"].default, "read": read})
    assert check(case(check.phrase("12"), "12", gold="12")).score == 1


@pytest.mark.parametrize(
    ("words", "number", "rest"),
    [
        ("nine hundred ninety-nine thousand nine hundred ninety-nine", 999_999, ""),
        ("one million two hundred thousand and one", 1_200_001, ""),
        ("two and a half hours", 2.5, "hours"),
        ("half an hour", 0.5, "hour"),
        ("minus three quarters", -0.75, ""),
        ("one thousand one million", None, ""),
        ("one one", 1, "one"),
        ("hundred", None, ""),
    ],
)
def test_numbers_in_words(words: str, number: float | None, rest: str) -> None:
    result = read_words(words)
    assert (result and (float(result[0]), result[1])) == (None if number is None else (number, rest))


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("km/h", 1000 / 3600),
        ("square metres", 1),
        ("cm^3", 1e-6),
        ("m per second squared", 1),
        ("ml", 1e-6),
        ("%", 0.01),
    ],
)
def test_units_in_base_units(text: str, factor: float) -> None:
    unit = read_unit(text)
    assert unit is not None
    assert float(unit.factor) == pytest.approx(factor)


def test_a_power_of_ten_that_fills_the_memory_is_no_number() -> None:
    for text in ("1e9999999999", "10^999999999", "1 * 10^99999", "9" * 100_000):
        assert measure(text, Problem("p", "")) is None


def test_a_format_scores_the_share_of_parts_that_are_there_exactly_once() -> None:
    check = FormatVerifier(requires=("<think>", "</think>", r"\\boxed\{", "(?m)^Answer:"))
    assert check(case("<think>a</think>\nAnswer: \\boxed{1}")) == Verdict(1.0)
    assert check(case("<think><think></think>\\boxed{1}")) == Verdict(0.5, "<think>: 2 times; (?m)^Answer:: 0 times")
    assert check(case("")).score == 0


@pytest.mark.parametrize(("words", "score"), [(0, 0), (6, 0), (7, -0.25), (8, -0.5), (10, -1), (50, -1)])
def test_the_penalty_for_length_is_that_of_dapo(words: int, score: float) -> None:
    # Equation 13 of arXiv 2503.14476 with L_max 10 and L_cache 4: ((10 - 4) - |y|) / 4 between 6 and 10.
    assert LengthVerifier(soft=6, hard=10)(case("word " * words)).score == score
    assert LengthVerifier(soft=6, hard=10, unit="characters")(case("x" * words)).score == score


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"n": 1}', ""),
        ('{"n": "1"}', "$.n: '1' is not of type 'integer'"),
        ("{}", "$: 'n' is a required property"),
        ('{"n": NaN}', "no JSON: NaN is no JSON number"),
        ("n: 1", "no JSON"),
        (None, "no JSON"),
    ],
)
def test_json_must_fit_its_schema(answer: str | None, why: str) -> None:
    verdict = JsonSchemaVerifier(accepts=SCHEMA)(case("", answer))
    assert verdict.score == (0 if why else 1)
    assert verdict.why.startswith(why)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (LengthVerifier, {"soft": 9, "hard": 9}, "soft: 9 must be less than hard, 9"),
        (PatternVerifier, {"pattern": "yes|no"}, "has no {answer}"),
        (PatternVerifier, {"pattern": "({answer}"}, "is no regular expression"),
        (FormatVerifier, {"requires": ["("]}, "is no regular expression"),
        (FormatVerifier, {"requires": []}, "at least 1 item"),
        (JsonSchemaVerifier, {"accepts": {"type": "text"}}, "no JSON schema: 'text' is not valid"),
        (ExactVerifier, {"read": "box"}, "'answer', 'boxed' or 'last_line'"),
        (NumericVerifier, {"absolute": -1}, "greater than or equal to 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(kind: type[VerifierConfig], settings: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("(", r"\(").replace("{", r"\{")):
        kind.model_validate(settings)


def test_a_pattern_may_come_with_the_problem() -> None:
    check = PatternVerifier()
    assert check(case("", "2024-02-30", pattern=r"\d{4}-\d\d-\d\d")).score == 1
    assert check(case("", "February", pattern=r"\d{4}-\d\d-\d\d")).score == 0


def test_settings_load_neither_computer_algebra_nor_a_schema_library() -> None:
    modules = "text_verifiers numeric mathematics"
    code = f"""
import sys
for name in {modules!r}.split(): __import__("marl.games.verifiers." + name)
sys.exit(str([name for name in ("sympy", "math_verify", "jsonschema", "torch") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
