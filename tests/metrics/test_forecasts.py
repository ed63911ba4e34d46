"""Quality of forecasts, against numbers worked out by hand and numpy's correlation."""

from __future__ import annotations

import numpy as np
import pytest

from marl.metrics.forecasts import forecast_metrics


def test_the_brier_score_is_compared_with_that_of_the_best_constant() -> None:
    # (.1² + .1² + .3² + .5²) / 4 = .09; the outcomes' mean is .5, whose Brier score is .25.
    metrics = forecast_metrics([0.9, 0.1, 0.7, 0.5], [1.0, 0.0, 1.0, 0.0])
    assert metrics["brier"] == pytest.approx(0.09)
    assert metrics["brier_skill"] == pytest.approx(1 - 0.09 / 0.25)


def test_always_saying_the_mean_outcome_has_no_skill_and_no_correlation() -> None:
    metrics = forecast_metrics([0.25] * 4, [1.0, 0.0, 0.0, 0.0])
    assert metrics["brier_skill"] == pytest.approx(0)
    assert "correlation" not in metrics
    assert metrics["calibration_error"] == pytest.approx(0)


def test_equal_outcomes_leave_skill_and_correlation_out() -> None:
    assert forecast_metrics([0.2, 1.0], [1.0, 1.0]).keys().isdisjoint({"brier_skill", "correlation"})
    assert forecast_metrics([], []) == {}


def test_the_correlation_is_that_of_numpy() -> None:
    generator = np.random.default_rng(3)
    scores, outcomes = generator.random(50).tolist(), generator.integers(0, 2, 50).astype(float).tolist()
    assert forecast_metrics(scores, outcomes)["correlation"] == pytest.approx(np.corrcoef(scores, outcomes)[0, 1])


def test_the_calibration_curve_has_the_mean_outcome_of_each_fifth_of_scores() -> None:
    # Bins: .1 | none | none | .6 and .7 | 1 (the upper end belongs to the last bin).
    metrics = forecast_metrics([0.1, 0.6, 0.7, 1.0], [0.0, 1.0, 0.0, 1.0])
    curve = {name: value for name, value in metrics.items() if name.startswith("outcome_in_")}
    assert curve == {"outcome_in_1": 0.0, "outcome_in_4": 0.5, "outcome_in_5": 1.0}
    assert metrics["calibration_error"] == pytest.approx(0.25 * 0.1 + 0.5 * 0.15)
