# ruff: noqa: RUF001 (a full-width digit is meant)
"""Reasons of verdicts: whoever hears a verifier must not learn the right answer from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from marl.core.plugins import find_plugin, known_kinds
from marl.core.types import Problem, VerifierCase
from marl.protocols import VerifierConfig
from marl.protocols.tasks import overall_score

WRONG = (
    *(
        "",
        "1",
        "-1",
        "0.5",
        "x",
        "x^2+1",
        "2+3",
        "(1, 2)",
        "{1, 2}",
        "[1, 2]",
        "x > 3",
        "x = 1",
        "5 km",
        "5%",
        "not this",
    ),
    *(
        "A",
        "D",
        "A or D",
        "none",
        "no solution",
        "{}",
        '{"n": 1}',
        '{"n": NaN}',
        "[[1]]",
        "1/0",
        "9^{9^{9^9}}",
        "\\boxed{",
    ),
    *(
        "1 + 2",
        "7 * 8",
        "100 - 4",
        "100 / 3",
        "import os",
        "def f(n): return 1",
        "def f(n): return n",
        "print(1)",
        "f = 3",
    ),
    *(
        "def f(n): raise ValueError(n)",
        "\x1b[31mred",
        "\ud800",
        "1" * 300,
        "word " * 100,
        "((((",
        "\\frac{1}{",
        "$5",
        "１",
    ),
)
PAIRS: dict[str, tuple[dict[str, Any], tuple[Problem, Problem]]] = {}
"""Kind -> settings, and two problems that differ in the right answer alone."""


def _pair(kind: str, answers: tuple[str, str], *facts: dict[str, Any], **settings: Any) -> None:
    first, second = facts or ({}, {})
    problems = (
        Problem("p", "What is it?", answers[0], facts=first),
        Problem("p", "What is it?", answers[1], facts=second),
    )
    PAIRS[kind] = ({"kind": kind, **settings}, problems)


def _tests(expected: str) -> dict[str, Any]:
    return {"tests": [{"call": "f(2)", "expect": expected}, {"stdin": "2", "stdout": expected}]}


CHOICES = {"choices": ["Mercury", "Venus", "Earth", "Mars"]}
_pair("exact", ("kestrel731846", "buzzard926453"))
_pair("pattern", ("kestrel731846", "buzzard926453"), pattern="the {answer}")
_pair("choice", ("B", "C"), CHOICES, CHOICES)
_pair("json", ('{"kestrel": 731846}', '{"buzzard": 926453}'))
_pair("numeric", ("731846", "926453"))
_pair("math", ("731846x + \\sqrt{731846}", "926453x + \\sqrt{926453}"))
_pair(
    "countdown_expression",
    ("100 - 3", "3 - 100"),
    {"numbers": [3, 100], "target": 97},
    {"numbers": [3, 100], "target": 97},
)
PAPERS = ('{"papers":["kestrel731846"]}', '{"papers":["buzzard926453"]}')
_pair("recall", PAPERS)
_pair("precision", PAPERS)
_pair("new_papers", PAPERS)
_pair("unit_tests", ("def f(n): return 731846", "def f(n): return 926453"), _tests("731846"), _tests("926453"))


def _graders() -> Iterator[str]:
    for kind in known_kinds("verifiers"):
        part = find_plugin("verifiers", kind)
        assert issubclass(part, VerifierConfig)
        if part.checks_correctness:
            yield kind


@pytest.mark.parametrize("kind", list(_graders()))
def test_a_reason_neither_tells_the_right_answer_nor_depends_on_it(kind: str) -> None:
    settings, (first, second) = PAIRS[kind]
    check = find_plugin("verifiers", kind).model_validate(settings)
    assert isinstance(check, VerifierConfig)
    texts = WRONG if kind != "unit_tests" else [text for text in WRONG if "def" in text or "print" in text]
    for text in texts:
        reasons = [check(VerifierCase(problem, text, text)).why for problem in (first, second)]
        assert reasons[0] == reasons[1] != "", text
        assert not any(secret in reasons[0] for secret in ("731846", "926453", "kestrel", "buzzard")), text
        assert len(reasons[0]) < 400, text
        assert "\x1b" not in reasons[0]


@pytest.mark.parametrize("kind", ["numeric", "math", "exact", "choice"])
@pytest.mark.parametrize("gold", ["kestrel 731846 \\int_{", "731846?"])
def test_a_right_answer_that_cannot_be_read_is_not_told_either(kind: str, gold: str) -> None:
    check = find_plugin("verifiers", kind).model_validate({"kind": kind})
    assert isinstance(check, VerifierConfig)
    verdict = check(VerifierCase(Problem("p", "", gold, facts=CHOICES), "5", "5"))
    assert verdict.score == 0
    assert verdict.why
    assert "731846" not in verdict.why


GOLDS_OF_ONE_KIND = {
    "integer": ("731846", "926453", "7"),
    "fraction": ("731/846", "92/645"),
    "formula": ("731846x + \\sqrt{7}", "x^2 + 926453"),
    "set": ("\\{731, 846\\}", "\\{926, 453\\}"),
    "tuple": ("(731, 846)", "(926, 453)"),
    "interval": ("[1, 2)", "[3, 4)"),
    "inequality": ("x > 731", "x > 926"),
    "equation": ("x = 731", "y = 926"),
    "words": ("kestrel", "buzzard"),
}


@pytest.mark.parametrize("grader", ["math", "numeric", "exact", "json", "choice"])
def test_a_reason_depends_on_no_more_than_the_kind_of_the_right_answer(grader: str) -> None:
    check = find_plugin("verifiers", grader).model_validate({"kind": grader})
    assert isinstance(check, VerifierConfig)
    for golds in GOLDS_OF_ONE_KIND.values():
        for text in WRONG:
            verdicts = [
                check(VerifierCase(Problem("p", "What is it?", gold, facts=CHOICES), text, text)) for gold in golds
            ]
            assert len({verdict.why for verdict in verdicts if overall_score(verdict.score) <= 0}) <= 1, (golds, text)
