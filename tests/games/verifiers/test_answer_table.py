"""The hand-made table of answers, put to real worker processes that are killed when their time is over."""

from __future__ import annotations

import pytest
from answer_table import outcomes, rows

from marl.engines.workers.pool import PluginJobResult


def misses() -> list[str]:
    return [
        f"{row.check!r}: gold {row.case.problem.answer!r}, said {row.case.text[:80]!r}: {outcome}"
        for row, outcome in outcomes()
        if _accepted(outcome) != row.right
    ]


def _accepted(outcome: PluginJobResult) -> bool:
    return not outcome.error and outcome.value[0] == 1


def test_the_table_is_large_and_half_of_it_means_to_deceive() -> None:
    assert len(rows()) >= 300
    assert sum(row.adversarial for row in rows()) >= 120
    assert len({(row.check, row.case.text, row.case.problem.answer) for row in rows() if row.right}) >= 100


def test_at_least_97_percent_of_the_verdicts_are_right() -> None:
    share = 1 - len(misses()) / len(rows())
    print(f"{share:.1%} of {len(rows())} verdicts are right")
    assert share >= 0.97, "\n".join(misses())


def test_no_deceitful_answer_is_accepted() -> None:
    fooled = [row for row, outcome in outcomes() if row.adversarial and not row.right and _accepted(outcome)]
    assert not fooled


@pytest.mark.one_in(3)
def test_nothing_crashes_a_verifier_and_only_backtracking_has_to_be_killed() -> None:
    errors = [(row.check.kind, outcome.error) for row, outcome in outcomes() if outcome.error]
    assert [error for kind, error in errors if kind != "pattern"] == []
    assert {error for _, error in errors} == {"timed out after 1 s"}
