"""Best evaluation of a run so far, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from marl.core.config import choices_hint
from marl.core.types import Metrics
from marl.scenario.games import EvaluationSettings


class BestEvaluationTracker:
    """Best evaluation so far, by one metric. A resumed run rebuilds the tracker from its metrics.jsonl."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self.metric = settings.best_checkpoint_metric
        """Name of the metric by which evaluations are compared, or None if `evaluate.keep_best` is not set."""
        self.step: int | None = None
        """Step of the best evaluation, or None before the first evaluation."""
        self.value = math.nan
        """Value of the metric in the best evaluation (NaN before the first evaluation)."""
        self._sign = -1.0 if settings.goal == "min" else 1.0
        self._patience = settings.patience
        self._evaluations_since_best = 0

    @classmethod
    def from_rows(cls, settings: EvaluationSettings, rows: Iterable[Mapping[str, Any]]) -> BestEvaluationTracker:
        """Return a tracker updated with `rows` of metrics.jsonl."""
        best = cls(settings)
        for row in rows:
            best.update(row["step"], row)
        return best

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare the evaluation after `step` with the best evaluation. On a tie the earlier step stays the best.

        Metrics without the compared metric are ignored.
        """
        value = metrics.get(self.metric) if self.metric else None
        if value is None:
            return
        self._evaluations_since_best += 1
        if self.step is None or self._sign * value > self._sign * self.value or math.isnan(self.value):
            self.step, self.value, self._evaluations_since_best = step, value, 0

    def require_compared_metric(self, measured: Metrics) -> None:
        """Check that the metrics of the first evaluation contain the compared metric.

        Raises:
            ValueError: if `measured` lacks the metric.
        """
        if self.metric and self.step is None and self.metric not in measured:
            names = [name for name in measured if not name.endswith(("_low", "_high"))]
            raise ValueError(f"evaluate.keep_best: no figure {self.metric!r}; {choices_hint(self.metric, names)}")

    @property
    def out_of_patience(self) -> bool:
        """True if the run must stop, because the last `evaluate.patience` evaluations brought no improvement."""
        return self._patience is not None and self._evaluations_since_best >= self._patience

    @property
    def stop_message(self) -> str:
        """Message with the reason for which the run stopped early."""
        return (
            f"stopped early: {self.metric} has not improved on {self.value:.4g} (step {self.step}) "
            f"for {self._evaluations_since_best} evaluations (evaluate.patience)"
        )
