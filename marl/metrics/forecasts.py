"""Quality of forecasts, such as a critic's scores of answers, against the outcomes that came."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import correlation, fmean

from marl.core.types import Metrics

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/held_out/forecast/NAME/brier | squared difference | Brier score of a forecast (`evaluate.forecasts`): mean of
    (score - outcome)^2 over episodes
eval/held_out/forecast/NAME/brier_skill | share | 1 - Brier score / Brier score of the best constant forecast: 1 is
    perfect, 0 is no better than always saying the mean outcome; missing if all outcomes are equal
eval/held_out/forecast/NAME/correlation | -1 to 1 | Pearson correlation of scores and outcomes; missing if either is
    constant
eval/held_out/forecast/NAME/calibration_error | share | expected calibration error: mean distance of a bin's mean score
    from its mean outcome, weighted by episodes; five bins of equal width
eval/held_out/forecast/NAME/outcome_in_K | the outcome's | calibration curve: mean outcome of the episodes whose score
    is in bin K of five, from 1 (0 to .2) to 5 (.8 to 1); missing for an empty bin
"""

BIN_COUNT = 5
"""Number of bins of equal width into which scores from 0 to 1 are divided."""


def forecast_metrics(scores: Sequence[float], outcomes: Sequence[float]) -> Metrics:
    """Return the quality of the forecasts `scores` of `outcomes`, both one for each episode; {} without episodes.

    Brier score and skill (Brier 1950; Murphy 1973), expected calibration error (1706.04599).
    """
    if not scores:
        return {}
    brier = fmean((score - outcome) ** 2 for score, outcome in zip(scores, outcomes, strict=True))
    mean_outcome = fmean(outcomes)
    constant_brier = fmean((outcome - mean_outcome) ** 2 for outcome in outcomes)
    metrics: Metrics = {"brier": brier}
    if len(set(outcomes)) > 1:
        metrics["brier_skill"] = 1 - brier / constant_brier
        if len(set(scores)) > 1:
            metrics["correlation"] = correlation(scores, outcomes)
    bins: dict[int, list[tuple[float, float]]] = {}
    for score, outcome in zip(scores, outcomes, strict=True):
        number = min(max(int(score * BIN_COUNT) + 1, 1), BIN_COUNT)
        bins.setdefault(number, []).append((score, outcome))
    error = 0.0
    for number, members in sorted(bins.items()):
        mean_score, mean_of_bin = (fmean(column) for column in zip(*members, strict=True))
        error += len(members) / len(scores) * abs(mean_score - mean_of_bin)
        metrics[f"outcome_in_{number}"] = mean_of_bin
    return metrics | {"calibration_error": error}
