"""Speed of a run and the time that it will take, from its newest rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 50
"""Number of steps over which speeds are measured."""
STAGES = ("play", "read", "judge", "learn", "publish", "record", "evaluate")
"""Stages that do not overlap, in their order; each is timed as `time/STAGE`."""
_WHOLE = ("time/step", "time/record", "time/evaluate")
"""Metrics that add up to the time between two rows."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Speed of a run over its newest steps."""

    step_s: float
    """Mean time of a step, evaluation and recording included, in seconds."""
    tokens_s: float
    """Tokens that were sampled or scored a second, evaluation left out."""
    episodes_s: float
    """Episodes a second, evaluation left out."""
    shares: Mapping[str, float]
    """Stage -> its share of the time."""

    def remaining_s(self, steps: int) -> float:
        """Return the time that this many steps will take, in seconds."""
        return self.step_s * max(0, steps)


def throughput(rows: Rows) -> Throughput | None:
    """Return the speed over the newest rows; None if none of them has times."""
    recent = [row for row in rows[-WINDOW:] if "time/step" in row]
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
    """Return tokens a second. Rows count them from the run's start, so the first row only says where to begin."""
    counted = [row for row in rows if "step/tokens" in row]
    elapsed_s = sum(map(_wall_s, counted[1:]))
    if elapsed_s > 0:
        return max(0.0, counted[-1]["step/tokens"] - counted[0]["step/tokens"]) / elapsed_s
    first = [row for row in counted if row["step"] == 1]
    return first[0]["step/tokens"] / _wall_s(first[0]) if first and _wall_s(first[0]) > 0 else 0.0
