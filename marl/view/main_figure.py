"""Main figure of a run: its first and its last value with intervals, and whether they differ by more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, isfinite
from typing import Literal

from marl.core.statistics import Interval, difference_interval, student_t_interval
from marl.evaluation.evaluate import MIN_LEGAL_MASS, is_computed_from_move_probabilities
from marl.scenario.schema import EvaluationSettings
from marl.view.closing_report import title_by_evaluation_metric

History = Mapping[str, Sequence[tuple[int, float]]]
"""Metric -> its (step, value), in order."""
HISTORY_PREFIXES = ("eval/", "episode/measure/", "episode/return/")
"""Prefixes of the metrics that are read from a history."""
Verdict = Literal["better", "worse", "rose", "fell", "no clear change", "measured once", "does not count"]
Goal = Literal["max", "min"]
"""Direction of improvement of a metric."""
_HIGHER_IS_BETTER = ("/success", "/correct", "/optimal", "/win", "/draw", "/mean")
_CURVE_POINTS = 80
"""Maximum number of points of the figure's small curve."""
_MIN_WINDOW_STEPS = 5
"""Number of steps averaged at either end of a training metric, if the run has as many."""


@dataclass(frozen=True, slots=True)
class FigureValue:
    """Value of the main figure at one end of a run."""

    step: int
    value: float
    low: float | None = None
    """Lower bound of the 95 % interval (None: unknown, or the value is exact)."""
    high: float | None = None
    """Upper bound of the 95 % interval (None: unknown, or the value is exact)."""


@dataclass(frozen=True, slots=True)
class MainFigure:
    """Change of a run's main figure."""

    metric: str
    title: str
    first: FigureValue
    last: FigureValue
    difference: float
    """Last minus first value."""
    difference_low: float | None
    """Lower bound of the difference's 95 % interval (None: unknown, or the values are exact)."""
    difference_high: float | None
    verdict: Verdict
    """`rose` and `fell` are said of a figure without a known better direction."""
    basis: str
    """What the intervals are over."""
    curve: Sequence[tuple[int, float]]
    """Points of a small curve."""
    goal: Goal | None
    """Direction of improvement, or None if it is unknown."""


def main_figure(history: History, evaluation: EvaluationSettings) -> MainFigure | None:
    """Return the change of the most telling figure of a run, or None if nothing was measured that could tell.

    The figure is `evaluate.keep_best`, or else the first evaluation metric in the order of the closing report, with
    `success` before other held-out measures. A run without evaluations has a measure of its training episodes, or the
    return of an agent, unless the game is zero-sum, where both sides of self-play improve at the cost of each other.
    """
    best = evaluation.best_checkpoint_metric
    titles = title_by_evaluation_metric(history)
    names = sorted(titles, key=lambda name: not name.endswith("/success"))
    candidates = [name for name in (best, *names, *_training_metrics(history)) if name and history.get(name)]
    if not candidates:
        return None
    metric = candidates[0]
    title = titles.get(metric, metric.removeprefix("episode/").replace("/", " ", 1) + " in training")
    points = [(step, value) for step, value in history[metric] if isfinite(value)]
    if not points:
        return None
    is_exact = is_computed_from_move_probabilities(metric)
    first, last, basis = _ends(history, metric, points)
    low, difference, high = difference_interval(_interval(first, is_exact), _interval(last, is_exact))
    goal = (evaluation.goal if metric == best else None) or better_direction(metric)
    verdict = _verdict((low, difference, high), goal)
    masses = history.get(f"{metric.rpartition('/')[0]}/legal_mass", ()) if is_exact else ()
    if masses and masses[-1][1] < MIN_LEGAL_MASS:
        verdict, basis = "does not count", f"legal mass {masses[-1][1]:.2g}, below {MIN_LEGAL_MASS}"
    elif first.step == last.step:
        verdict = "measured once"
    has_interval = isfinite(low) and not is_exact
    every = -(-len(points) // _CURVE_POINTS)
    bounds = (low, high) if has_interval else (None, None)
    curve = points[::every] + points[-1:]
    return MainFigure(metric, title, first, last, difference, *bounds, verdict, basis, curve, goal)


def better_direction(metric: str) -> Goal | None:
    """Return the direction in which `metric` improves, or None if its name does not tell."""
    if metric.endswith("nashconv"):
        return "min"
    return "max" if metric.endswith(_HIGHER_IS_BETTER) or metric.startswith("episode/return/") else None


def _training_metrics(history: History) -> Iterator[str]:
    """Yield the metrics of training episodes that can tell whether a run learns."""
    yield from sorted((name for name in history if name.startswith("episode/measure/")), key=_is_no_success)
    if not is_zero_sum(history):
        yield from _nonzero_returns(history)


def is_zero_sum(history: History) -> bool:
    """Return True if the returns of all agents add up to 0 in every step, and are not all 0."""
    totals: dict[int, float] = {}
    for name in _nonzero_returns(history):
        for step, value in history[name]:
            totals[step] = totals.get(step, 0.0) + value
    return bool(totals) and all(isclose(total, 0.0, abs_tol=1e-9) for total in totals.values())


def _nonzero_returns(history: History) -> list[str]:
    return [name for name in history if name.startswith("episode/return/") and any(v for _, v in history[name])]


def _is_no_success(name: str) -> bool:
    return not name.endswith("/success")


def _ends(history: History, metric: str, points: Sequence[tuple[int, float]]) -> tuple[FigureValue, FigureValue, str]:
    """Return the first and the last value of `metric`, and what their intervals are over."""
    if metric.startswith("eval/"):
        ends: list[FigureValue] = []
        for step, value in (points[0], points[-1]):
            bounds = [dict(history.get(f"{metric}_{side}", ())).get(step) for side in ("low", "high")]
            ends.append(FigureValue(step, value, *bounds))
        if is_computed_from_move_probabilities(metric):
            return ends[0], ends[1], "exact"
        return ends[0], ends[1], "over episodes" if ends[1].low is not None else "no interval was recorded"
    # Single steps of training are noisy, so each end is a mean over steps.
    count = max(1, len(points) // 10, min(_MIN_WINDOW_STEPS, len(points) // 2))
    ends = []
    for window, step in ((points[:count], points[0][0]), (points[-count:], points[-1][0])):
        low, mean, high = student_t_interval([value for _, value in window])
        ends.append(FigureValue(step, mean, *((low, high) if isfinite(low) else (None, None))))
    basis = f"over the {count} steps at either end" if count > 1 else "no interval: too few steps"
    return ends[0], ends[1], basis


def _interval(end: FigureValue, is_exact: bool) -> Interval:
    """Return the interval of a value: the value itself if it is exact, and infinite bounds if they are unknown."""
    if end.low is None or end.high is None:
        half = 0.0 if is_exact else inf
        return end.value - half, end.value, end.value + half
    return end.low, end.value, end.high


def _verdict(difference: Interval, goal: Goal | None) -> Verdict:
    """Return what a difference with this interval says about a figure that improves in the direction `goal`."""
    low, _, high = difference
    if low <= 0 <= high:
        return "no clear change"
    rises = low > 0
    if goal is None:
        return "rose" if rises else "fell"
    return "better" if rises == (goal == "max") else "worse"
