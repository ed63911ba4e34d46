"""The hand-made table of answers, put to real worker processes that are killed when their time is over."""

from __future__ import annotations

from functools import cache

from answer_table import Row, rows

from marl.engines.workers.pool import Job, JobResult, WorkerPool
from marl.engines.workers.settings import encode_case


@cache
def outcomes() -> tuple[tuple[Row, JobResult], ...]:
    """Return every row with the result of the workers."""
    checks = list(dict.fromkeys(row.check.model_dump_json() for row in rows()))
    parts = {str(checks.index(row.check.model_dump_json())): row.check for row in rows()}
    names = {part.model_dump_json(): name for name, part in parts.items()}
    pool = WorkerPool(parts, 2, 4 * 2**30)
    jobs = {Job(names[row.check.model_dump_json()], encode_case(row.case), row.check.timeout_s): row for row in rows()}
    for job in jobs:
        pool.put(job)
    results: dict[Job, JobResult] = {}
    while len(results) < len(jobs):
        results.update(pool.take(1.0))
    pool.close()
    return tuple((row, results[job]) for job, row in jobs.items())


def misses() -> list[str]:
    return [
        f"{row.check!r}: gold {row.case.problem.answer!r}, said {row.case.text[:80]!r}: {outcome}"
        for row, outcome in outcomes()
        if _accepted(outcome) != row.right
    ]


def _accepted(outcome: JobResult) -> bool:
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


def test_nothing_crashes_a_verifier_and_only_backtracking_has_to_be_killed() -> None:
    errors = [(row.check.kind, outcome.error) for row, outcome in outcomes() if outcome.error]
    assert [error for kind, error in errors if kind != "pattern"] == []
    assert {error for _, error in errors} == {"timed out after 1 s"}
