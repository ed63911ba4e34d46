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
"""Metrics whose sum is the time between two rows."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of a run over its newest steps."""

    step_s: float
    """Mean duration of a step, including evaluation and recording [s]."""
    tokens_per_s: float
    """Tokens sampled or scored per second, without evaluations."""
    episodes_per_s: float
    """Episodes per second, without evaluations."""
    time_shares: Mapping[str, float]
    """Stage -> fraction of the time."""

    def remaining_s(self, steps: int) -> float:
        """Return the expected duration of `steps` further steps [s]."""
        return self.step_s * max(0, steps)


def measure_throughput(rows: Rows) -> Throughput | None:
    """Return the speed over the newest rows, or None if they contain no times."""
    recent = [row for row in rows[-WINDOW_STEPS:] if "time/step" in row]
    elapsed_s = sum(map(_wall_s, recent))
    if elapsed_s <= 0:
        return None
    stages_s = {stage: sum(row.get(f"time/{stage}", 0.0) for row in recent) for stage in STAGES}
    episodes = sum(row.get("episode/count", 0.0) for row in recent)
    shares = {stage: seconds / elapsed_s for stage, seconds in stages_s.items() if seconds}
    return Throughput(elapsed_s / len(recent), _tokens_s(recent), episodes / elapsed_s, shares)


def _wall_s(row: Mapping[str, Any]) -> float:
    return sum(row.get(name, 0.0) for name in _WHOLE)


def _tokens_s(rows: Rows) -> float:
    """Return tokens per second. `step/tokens` is cumulative, so the first row only serves as the reference."""
    counting_rows = [row for row in rows if "step/tokens" in row]
    elapsed_s = sum(map(_wall_s, counting_rows[1:]))
    if elapsed_s > 0:
        return max(0.0, counting_rows[-1]["step/tokens"] - counting_rows[0]["step/tokens"]) / elapsed_s
    first = [row for row in counting_rows if row["step"] == 1]
    return first[0]["step/tokens"] / _wall_s(first[0]) if first and _wall_s(first[0]) > 0 else 0.0
