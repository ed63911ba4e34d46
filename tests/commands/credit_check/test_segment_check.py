"""Exact values of answers with several steps, and rules that recover them."""

from __future__ import annotations

import pytest

from marl.commands.credit_check.methods import CreditCheckPlan, run_credit_check
from marl.commands.credit_check.segment_measure import SEGMENT_METHODS, AnswerValues
from marl.commands.credit_check.segment_tasks import ANSWERS, SEGMENT_TASKS, step_scores

SUM, ALL = SEGMENT_TASKS


def test_values_of_uniform_answers_are_those_by_hand() -> None:
    chances = dict.fromkeys(ANSWERS, 1 / 8)
    # The right steps are b, a, b. Paid is the share of right steps: 1/2 on average, and (1 + 1/2 + 1/2) / 3 after b.
    values = AnswerValues(SUM, chances)
    assert values.value(()) == pytest.approx(1 / 2)
    assert values.value(("b",)) == pytest.approx(2 / 3)
    assert values.advantage(("b", "b")) == pytest.approx(-1 / 6)
    # After b a: the second step's score, half of the third, and the reward (1 + 1 + 1/2) / 3.
    assert values.reward_to_go(("b", "a")) == pytest.approx(1 + 1 / 2 + 5 / 6)
    # Paid only if all are right.
    values = AnswerValues(ALL, chances)
    assert [values.value(("b", "a", "b")[:count]) for count in range(4)] == pytest.approx([1 / 8, 1 / 4, 1 / 2, 1])
    assert values.advantage(("a",)) == pytest.approx(-1 / 8)
    assert values.advantage(("a", "a")) == 0


def test_answers_of_other_lengths_have_a_score_for_each_step() -> None:
    assert step_scores(("b", "b")) == [1.0, 0.0]
    assert step_scores(("b", "a", "b", "b")) == [1.0, 1.0, 1.0, 0.0]


@pytest.mark.slow
def test_rules_by_segments_recover_their_estimands() -> None:
    plan = CreditCheckPlan(SEGMENT_TASKS, tuple(method.name for method in SEGMENT_METHODS))
    results = run_credit_check(plan)
    assert len(results.methods) == 8
    assert all(result.recovered for result in results.methods)
    exact = {(result.method, result.task): result.pearson or 0.0 for result in results.methods}
    for task in (SUM.name, ALL.name):
        assert min(exact["gae (segments)", task], exact["replay (segments)", task]) >= 0.95
        assert exact["outcome", task] < 0.9
