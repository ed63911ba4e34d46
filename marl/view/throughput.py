"""Speed of a run and remaining time, from its newest metric rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW_STEPS = 50
"""Number of newest steps over which speeds are averaged."""
STAGES = ("play", "read", "credit", "learn", "publish", "record", "evaluate")
"""Sequential stages of a step, each timed as `time/STAGE`."""
_WHOLE = ("time/step", "time/record", "time/evaluate")
"""Durations [s] recorded in a row, whose sum is the time since the previous row."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RunThroughput:
    """Speed of a run over its newest steps."""

    step_s: float
    """Mean duration of a step, including evaluation and recording [s]."""
    tokens_per_s: float
    """Tokens sampled or scored per second, without evaluations."""
    episodes_per_s: float
    """Episodes per second, without evaluations."""
    time_shares: Mapping[str, float]
    """Stage of a step, one of `STAGES` -> fraction of the total time."""


def measure_throughput(rows: Rows) -> RunThroughput | None:
    """Return the speed over the newest rows, or None if they contain no times."""
    recent = [row for row in rows[-WINDOW_STEPS:] if "time/step" in row]
    elapsed_s = sum(map(row_duration_s, recent))
    if elapsed_s <= 0:
        return None
    shares: dict[str, float] = {}
    for stage in STAGES:
        if seconds := _metric_sum(recent, f"time/{stage}"):
            shares[stage] = seconds / elapsed_s
    # `step/tokens` is cumulative, so the first row is only the reference for differences.
    counting_rows = [row for row in recent if "step/tokens" in row]
    counting_s, tokens_per_s = sum(map(row_duration_s, counting_rows[1:])), 0.0
    if counting_s > 0:
        tokens_per_s = max(0.0, counting_rows[-1]["step/tokens"] - counting_rows[0]["step/tokens"]) / counting_s
    elif counting_rows and counting_rows[0]["step"] == 1 and row_duration_s(counting_rows[0]) > 0:
        tokens_per_s = counting_rows[0]["step/tokens"] / row_duration_s(counting_rows[0])
    return RunThroughput(
        elapsed_s / len(recent), tokens_per_s, _metric_sum(recent, "episode/count") / elapsed_s, shares
    )


def _metric_sum(rows: Rows, metric: str) -> float:
    """Return the sum of `metric` over `rows`. A row without the metric counts as 0."""
    return sum(row.get(metric, 0.0) for row in rows)


def row_duration_s(row: Mapping[str, Any]) -> float:
    """Return the time between a row and the previous one [s]."""
    return sum(row.get(name, 0.0) for name in _WHOLE)
