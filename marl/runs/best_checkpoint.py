"""Best evaluation of a run so far, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.scenario.schema import EvaluationSettings


class BestTracker:
    """Best evaluation so far, by one metric. A resumed run rebuilds the tracker from the rows of metrics.jsonl."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self.metric = settings.best_by
        """Compared metric, or None if `evaluate.keep_best` is not set."""
        self.step: int | None = None
        """Step of the best evaluation."""
        self.value = math.nan
        self._sign = -1.0 if settings.goal == "min" else 1.0
        self._patience = settings.patience
        self._since = 0

    @classmethod
    def from_rows(cls, settings: EvaluationSettings, rows: Iterable[Mapping[str, Any]]) -> BestTracker:
        """Return a tracker updated with `rows` of metrics.jsonl."""
        best = cls(settings)
        for row in rows:
            best.update(row["step"], row)
        return best

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare a step with the best one if `metrics` has the metric. On a tie the earlier step stays best."""
        value = metrics.get(self.metric) if self.metric else None
        if value is None:
            return
        self._since += 1
        if self.step is None or self._sign * value > self._sign * self.value or math.isnan(self.value):
            self.step, self.value, self._since = step, value, 0

    def check_measured(self, measured: Metrics) -> None:
        """Check that the metrics `measured` by the first evaluation contain the compared one.

        Raises:
            ValueError: if they do not.
        """
        if self.metric and self.step is None and self.metric not in measured:
            names = [name for name in measured if not name.endswith(("_low", "_high"))]
            raise ValueError(f"evaluate.keep_best: no figure {self.metric!r}; {choices_hint(self.metric, names)}")

    @property
    def out_of_patience(self) -> bool:
        """True if the last `evaluate.patience` evaluations brought no improvement, in which case the run stops."""
        return self._patience is not None and self._since >= self._patience

    @property
    def stop_message(self) -> str:
        """Message that says why the run stopped early."""
        return (
            f"stopped early: {self.metric} has not improved on {self.value:.4g} (step {self.step}) "
            f"for {self._since} evaluations (evaluate.patience)"
        )
