"""Best evaluation of a run so far, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from marl.config import nearest
from marl.scenario.schema import Evaluate
from marl.types import Metrics


class Best:
    """The best evaluation so far. It follows from the rows of metrics.jsonl, so a resumed run reads them again."""

    def __init__(self, settings: Evaluate) -> None:
        self.figure = settings.best_by
        """Metric that is compared; None if there is none."""
        self.step: int | None = None
        """Step of the best evaluation."""
        self.value = math.nan
        self._sign = -1.0 if settings.goal == "min" else 1.0
        self._patience = settings.patience
        self._since = 0

    @classmethod
    def of(cls, settings: Evaluate, rows: Iterable[Mapping[str, Any]]) -> Best:
        """Return the best of these rows of metrics.jsonl."""
        best = cls(settings)
        for row in rows:
            best.take(row["step"], row)
        return best

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare a step with the best one, if it was measured. Equal figures: the earlier one stays."""
        value = metrics.get(self.figure) if self.figure else None
        if value is None:
            return
        self._since += 1
        if self.step is None or self._sign * value > self._sign * self.value or math.isnan(self.value):
            self.step, self.value, self._since = step, value, 0

    def expect(self, measured: Metrics) -> None:
        """Check that an evaluation measures the metric that is compared.

        Raises:
            ValueError: if it does not.
        """
        if self.figure and self.step is None and self.figure not in measured:
            known = [name for name in measured if not name.endswith(("_low", "_high"))]
            raise ValueError(f"evaluate.keep_best: no figure {self.figure!r}; {nearest(self.figure, known)}")

    @property
    def given_up(self) -> bool:
        """Return True if `evaluate.patience` evaluations in a row were not better."""
        return self._patience is not None and self._since >= self._patience

    @property
    def why(self) -> str:
        """Return the message of a run that was given up."""
        return (
            f"stopped early: {self.figure} has not improved on {self.value:.4g} (step {self.step}) "
            f"for {self._since} evaluations (evaluate.patience)"
        )
