"""The tune half of the answer table that follows published grader tests: its make-up, and the verdicts on it."""

from __future__ import annotations

from collections import Counter

import pytest
from answer_table import HERE, Row, outcomes, rows

from marl.engines.workers.pool import PluginJobResult

TABLE = HERE / "published_tune.yaml"
NEVER_RIGHT = "hostile"
"""The class without a right answer: texts that mean to hang a verifier or to take it over."""


def accepted(result: PluginJobResult) -> bool:
    return not result.error and result.value[0] == 1


def described(row: Row) -> str:
    return f"{row.topic} {row.check!r}: gold {row.case.problem.answer!r}, said {row.case.text[:80]!r}"


def test_every_class_has_forty_pairs_and_a_third_of_them_is_wrong() -> None:
    wrong = Counter(row.topic for row in rows(TABLE) if not row.right)
    all_of_them = Counter(row.topic for row in rows(TABLE))
    assert len(all_of_them) == 26
    assert {topic: n for topic, n in all_of_them.items() if n < 40 or wrong[topic] < n / 3} == {}
    assert {topic for topic, n in all_of_them.items() if wrong[topic] == n} == {NEVER_RIGHT}


def test_no_pair_has_two_verdicts() -> None:
    verdicts: dict[tuple[str, str], set[bool]] = {}
    for row in rows(TABLE):
        verdicts.setdefault((row.check.model_dump_json(), encode_keyless(row)), set()).add(row.right)
    assert [pair for pair, found in verdicts.items() if len(found) > 1] == []


def encode_keyless(row: Row) -> str:
    problem = row.case.problem
    return repr((problem.question, problem.answer, dict(problem.facts), row.case.text, row.case.answer))


@pytest.mark.slow
def test_at_least_97_percent_of_the_verdicts_are_right() -> None:
    wrong = [described(row) for row, result in outcomes(TABLE) if accepted(result) != row.right]
    assert len(wrong) <= 0.03 * len(outcomes(TABLE)), "\n".join(wrong)


@pytest.mark.slow
def test_no_wrong_answer_is_accepted() -> None:
    assert [described(row) for row, result in outcomes(TABLE) if accepted(result) and not row.right] == []


@pytest.mark.slow
def test_nothing_crashes_or_hangs_a_verifier() -> None:
    assert [(described(row), result.error) for row, result in outcomes(TABLE) if result.error] == []
