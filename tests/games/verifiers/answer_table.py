"""Tables of answer pairs as verifiers and cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from marl.core.plugins import find_plugin
from marl.core.types import Problem, VerifierCase
from marl.engines.workers.pool import PluginJob, PluginJobResult, WorkerPool
from marl.engines.workers.settings import verifier_case_to_json
from marl.protocols import VerifierConfig

HERE = Path(__file__).parent
HAND_MADE = HERE / "answers.yaml"


@dataclass(frozen=True)
class Row:
    """One pair with the verdict that it must get."""

    check: VerifierConfig
    case: VerifierCase
    right: bool
    adversarial: bool
    topic: str = ""
    """The table's `class`: what kind of answer this is."""
    source: str = ""
    """The test suite or data set whose notation the pair follows."""


@cache
def rows(path: Path = HAND_MADE, kinds: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """Return the pairs of a table in the order of the file; of some kinds of verifier, if any are named."""
    groups = enumerate(yaml.safe_load(path.read_text(encoding="utf-8")))
    chosen = [(number, group) for number, group in groups if not kinds or group["check"]["kind"] in kinds]
    return tuple(row for number, group in chosen for row in _rows(number, group))


def _rows(number: int, group: dict[str, Any]) -> Iterator[Row]:
    check = find_plugin("verifiers", group["check"]["kind"]).model_validate(group["check"])
    assert isinstance(check, VerifierConfig)
    facts = {"choices": group["choices"]} if "choices" in group else {}
    labels = group.get("class", ""), group.get("source", "")
    for index, (gold, answer) in enumerate(group["pairs"]):
        text = answer if isinstance(answer, str) else answer["repeat"] * answer["times"]
        problem = Problem(f"{number}.{index}", group.get("question", ""), gold, facts=facts)
        parsed = None if group.get("said") == "text" else text
        yield Row(
            check,
            VerifierCase(problem, text, parsed),
            group["expect"] == "accept",
            group.get("adversarial", False),
            *labels,
        )


@cache
def outcomes(path: Path = HAND_MADE) -> tuple[tuple[Row, PluginJobResult], ...]:
    """Return every row of a table with the result of real worker processes."""
    table = rows(path)
    names = {check: str(i) for i, check in enumerate(dict.fromkeys(row.check.model_dump_json() for row in table))}
    pool = WorkerPool({names[row.check.model_dump_json()]: row.check for row in table}, 2, 4 * 2**30)
    jobs = {
        PluginJob(names[row.check.model_dump_json()], verifier_case_to_json(row.case), row.check.timeout_s): row
        for row in table
    }
    for job in jobs:
        pool.submit_job(job)
    results: dict[PluginJob, PluginJobResult] = {}
    while len(results) < len(jobs):
        results.update(pool.take_finished_jobs(1.0))
    pool.close()
    return tuple((row, results[job]) for job, row in jobs.items())
