"""Quality of a run's forecasts, such as a critic's scores, in the newest evaluation: skill and calibration curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl.metrics.forecasts import BIN_COUNT

_END = "/brier"


@dataclass(frozen=True, slots=True)
class ForecastQuality:
    """Metrics of one forecast (`evaluate.forecasts`) on the held-out starts of one evaluation."""

    scope: str
    """Scope of the metrics, such as `eval/held_out` or `eval/GAME/held_out_greedy`."""
    name: str
    step: int
    brier: float
    """Brier score: mean squared difference of forecast and outcome."""
    brier_skill: float | None
    """1 - Brier score / Brier score of the best constant, or None if all outcomes were equal."""
    correlation: float | None
    """Pearson correlation of forecasts and outcomes, or None if either was constant."""
    calibration_error: float
    outcomes: tuple[float | None, ...]
    """Calibration curve: mean outcome for the forecasts in each of the bins of equal width from 0 to 1, or None for an
    empty bin."""


def forecast_qualities(row: Mapping[str, Any]) -> dict[str, ForecastQuality]:
    """Return the quality of each forecast in one row of metrics, by the prefix of its metrics."""
    found: dict[str, ForecastQuality] = {}
    for metric in row:
        # Most names fail the first test, which is fast: the page reads all rows of long runs.
        if not metric.endswith(_END) or "/forecast/" not in metric:
            continue
        prefix = metric.removesuffix(_END)
        scope, _, name = prefix.partition("/forecast/")
        found[prefix] = ForecastQuality(
            *(scope, name, row["step"], row[metric]),
            row.get(f"{prefix}/brier_skill"),
            row.get(f"{prefix}/correlation"),
            row.get(f"{prefix}/calibration_error", 0.0),
            tuple([row.get(f"{prefix}/outcome_in_{number}") for number in range(1, BIN_COUNT + 1)]),
        )
    return found
