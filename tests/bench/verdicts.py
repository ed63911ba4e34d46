"""How often verifiers are right on a table of answer pairs, how long a verdict takes, and math-verify on the same rows.

    python tests/bench/verdicts.py [TABLE] [--out FILE] [--kinds numeric math] [--list-wrong]

Every pair is judged in a worker process, as in a run, one at a time; the clock starts when the process is up. Rates
come with Wilson's 95 % interval. A hang is a verdict that takes longer than the verifier's own `timeout_s`: the process
is killed, and the answer fails. Rows of the kinds `numeric` and `math` also go to math-verify alone (parse and verify,
its own defaults).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _bench import ROOT, parser, report
from _math_verify import MathVerifyAlone

from marl.core.statistics import wilson_interval
from marl.engines.workers.pool import PluginJob, PluginJobResult, WorkerPool
from marl.engines.workers.settings import verifier_case_to_json
from marl.games.verifiers.answer_statements import find_statements
from marl.protocols import VerifierConfig

TABLES = ROOT / "tests" / "games" / "verifiers"
sys.path.append(str(TABLES))
from answer_table import Row, rows  # noqa: E402  # pyright: ignore[reportMissingImports]  it lies beside the tables

MEMORY = 4 * 2**30


@dataclass(frozen=True)
class Outcome:
    """What became of a row: the verdict, the error that kept it from one, and the wall time."""

    row: Row
    accepted: bool
    error: str
    seconds: float

    @property
    def right(self) -> bool:
        return self.accepted == self.row.right

    @property
    def hung(self) -> bool:
        return self.error.startswith("timed out")


def outcomes(table: Sequence[Row], checks: Sequence[VerifierConfig]) -> list[Outcome]:
    """Put each row to its check, in one worker process that is brought up again before the clock starts."""
    names = {check.model_dump_json(): str(number) for number, check in enumerate(checks)}
    pool = WorkerPool({names[check.model_dump_json()]: check for check in checks}, 1, MEMORY)
    found, up = [], False
    for row, check in zip(table, checks, strict=True):
        job = PluginJob(names[check.model_dump_json()], verifier_case_to_json(row.case), check.timeout_s)
        if not up:
            _answer(pool, PluginJob(job.plugin, verifier_case_to_json(table[0].case), check.timeout_s))
        started = time.perf_counter()
        result = _answer(pool, job)
        found.append(Outcome(row, _accepted(result), result.error, time.perf_counter() - started))
        up = not result.error
    pool.close()
    return found


def _answer(pool: WorkerPool, job: PluginJob) -> PluginJobResult:
    pool.submit_job(job)
    while not (ready := pool.take_finished_jobs(1.0)):
        pass
    return ready[0][1]


def _accepted(result: PluginJobResult) -> bool:
    return not result.error and result.value[0] == 1


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    """Return counts, the share of right verdicts with its interval, and times in milliseconds."""
    if not found:
        return {"rows": 0}
    low, rate, high = wilson_interval(sum(outcome.right for outcome in found), len(found))
    times = [outcome.seconds * 1e3 for outcome in found]
    return {
        "rows": len(found),
        "right": [round(figure, 4) for figure in (low, rate, high)],
        "false_accepts": sum(outcome.accepted and not outcome.row.right for outcome in found),
        "false_rejects": sum(not outcome.accepted and outcome.row.right for outcome in found),
        "hangs": sum(outcome.hung for outcome in found),
        "errors": sum(bool(outcome.error) and not outcome.hung for outcome in found),
        "median_ms": round(statistics.median(times), 2),
        "p95_ms": round(statistics.quantiles([*times, times[-1]], n=20)[-1], 2),
    }


def times_without_worker(table: Sequence[Row]) -> dict[str, Any]:
    """Return median processor times of a verdict in this process [ms], without the way to a worker process and back.

    On an idle machine the way there takes longer than most verdicts, as both processes are woken up. Right answers
    repeat in a table, as in a group of episodes, and verifiers cache what they read: `right_answers` counts the
    different ones, and `cold` is the median with all caches of the verifiers emptied before every verdict.
    """
    times = [_processor_ms(row) for row in table]
    modules = [vars(module) for name, module in sys.modules.items() if name.startswith("marl.games.verifiers.")]
    caches = [value for names in modules for value in names.values() if isinstance(value, type(find_statements))]
    cold_times: list[float] = []
    for row in table:
        for cached in caches:
            cached.cache_clear()
        cold_times.append(_processor_ms(row))
    return {
        "right_answers": len({(row.check.model_dump_json(), row.case.problem.answer) for row in table}),
        "median_without_worker_ms": round(statistics.median(times), 2),
        "median_without_worker_cold_ms": round(statistics.median(cold_times), 2),
    }


def _processor_ms(row: Row) -> float:
    started = time.process_time()
    row.check(row.case)
    return (time.process_time() - started) * 1e3


def by_class(found: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """Return the summary of each class of answers."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in found:
        groups[outcome.row.topic].append(outcome)
    return {topic: summary(group) for topic, group in groups.items()}


def figures(table: Sequence[Row], *, list_wrong: bool) -> Mapping[str, Any]:
    """Return the figures of our verifiers, and of math-verify beside ours on the rows that both can judge."""
    ours = outcomes(table, [row.check for row in table])
    if list_wrong:
        print(*map(_line, (outcome for outcome in ours if not outcome.right)), sep="\n", file=sys.stderr)
    both = [outcome for outcome in ours if outcome.row.check.kind in ("numeric", "math")]
    shared = [outcome.row for outcome in both]
    theirs = outcomes(shared, [MathVerifyAlone(timeout_s=row.check.timeout_s) for row in shared])
    return {
        "all": summary(ours) | times_without_worker(table),
        "classes": by_class(ours),
        "numeric_and_math": {"verifiers": summary(both), "math_verify": summary(theirs)},
        "math_verify_classes": by_class(theirs),
    }


def _line(outcome: Outcome) -> str:
    row = outcome.row
    fault = outcome.error or ("false accept" if outcome.accepted else "false reject")
    asked = f", asked {row.case.problem.question!r}" if row.case.problem.question else ""
    return f"{row.topic} {row.check!r}: {fault}: gold {row.case.problem.answer!r}, said {row.case.text[:120]!r}{asked}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("table", nargs="?", type=Path, default=TABLES / "published_held_out.yaml")
    options.add_argument("--list-wrong", action="store_true", help="print the rows that are judged wrongly")
    options.add_argument("--kinds", nargs="+", default=[], help="judge only the rows of these verifiers")
    given = options.parse_args()
    table = rows(given.table, tuple(given.kinds))
    report(figures(table, list_wrong=given.list_wrong), given.out, seeds=[], table=given.table.name, rows=len(table))


if __name__ == "__main__":
    main()
