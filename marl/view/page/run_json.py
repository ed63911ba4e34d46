"""JSON data of runs for the page: curves, alarms, settings, metric rows and costs."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from marl.core.errors import RunFolderError
from marl.core.statistics import difference_interval
from marl.metrics.alarms import alarm_subject, alarm_summary, is_alarm_metric, watched_metric
from marl.runs.best_checkpoint import BestEvaluationTracker
from marl.runs.run_folder import RunFolder
from marl.runs.run_format import read_environment
from marl.scenario.schema import EvaluationSettings
from marl.view.colours import line_style_by_name
from marl.view.credit_warnings import conservation_warning
from marl.view.curve_data import CurveSelection, select_curves
from marl.view.forecast_quality import ForecastQuality, forecast_qualities
from marl.view.main_figure import HISTORY_PREFIXES, better_direction, is_zero_sum, main_figure
from marl.view.metric_units import metric_meaning
from marl.view.role_worth import RoleCorrections, measures_without_roles, role_corrections
from marl.view.run_comparison import (
    FinalMetricOfRunGroup,
    final_metric_of_group,
    is_cumulative_metric,
    select_summary_metrics,
)
from marl.view.run_groups import RunGroup, differing_settings, flatten_settings, metric_rows_of_all_runs
from marl.view.throughput import WINDOW_STEPS, measure_throughput, row_duration_s

MAX_CURVE_POINTS = 2000
"""Maximum number of points of a drawn curve."""
_CLOCK_POINTS = 100
"""Maximum number of points at which tokens and time are given; the page interpolates between them."""
_SUMS = ("time/", "credit/tokens")
"""Prefixes of per-step metrics that are summed over a run."""
Row = Mapping[str, Any]
T = TypeVar("T")
EMPTY_SUMMARY: dict[str, Any] = {
    **{"step": 0, "metrics": [], "ledger": {}, "alarms": [], "warnings": []},
    **{"corrections": [], "without_roles": [], "forecasts": []},
    **{"zero_sum": False, "figure": None, "best": None, "step_s": None, "clock": []},
}
"""Summary of a run that cannot be read."""


def summarize_run(
    run_folder: RunFolder, evaluation: EvaluationSettings, credited_roles: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the progress, main figure, best checkpoint, alarms, token counts, times and costs of a run as JSON data.

    `credited_roles`: roles that learn from credit, of which warnings tell (default: all roles with credit).
    """
    # The rows are read in a single pass, because the metrics file of a long run is large.
    last: Row = {}
    sums: dict[str, float] = defaultdict(float)
    alarm_steps_of: dict[str, list[int]] = defaultdict(list)
    names: dict[str, None] = {}
    conservation: dict[str, list[tuple[int, float]]] = defaultdict(list)
    history: dict[str, list[tuple[int, float]]] = defaultdict(list)
    newest: deque[Row] = deque(maxlen=WINDOW_STEPS)
    best = BestEvaluationTracker(evaluation)
    corrections, forecasts = dict[str, RoleCorrections](), dict[str, ForecastQuality]()
    # [step, tokens so far, seconds so far], for curves by tokens or by time.
    clock: list[list[float]] = []
    for row in run_folder.rows():
        tokens, seconds = clock[-1][1:] if clock else (0.0, 0.0)
        clock.append([row["step"], row.get("step/tokens", tokens), seconds + row_duration_s(row)])
        last = row
        newest.append(row)
        best.update(row["step"], row)
        corrections |= role_corrections(row)
        forecasts |= forecast_qualities(row)
        names |= dict.fromkeys(row)
        for name, value in row.items():
            if name.startswith(_SUMS) and isfinite(value):
                sums[name] += value
            elif name.endswith("/conservation"):
                if credited_roles is not None and name.split("/")[-2] not in credited_roles:
                    continue
                conservation[name].append((row["step"], value))
            elif name.startswith(HISTORY_PREFIXES):
                history[name].append((row["step"], value))
            elif value and is_alarm_metric(name):
                alarm_steps_of[name].append(row["step"])
    names.pop("step", None)
    totals = {name: value for name, value in last.items() if is_cumulative_metric(name)}
    figure, speed = main_figure(history, evaluation), measure_throughput(list(newest))
    return {
        "step": last.get("step", 0),
        "metrics": list(names),
        "corrections": list(map(asdict, corrections.values())),
        "without_roles": list(map(asdict, measures_without_roles(run_folder.path, corrections.values()))),
        "forecasts": list(map(asdict, forecasts.values())),
        "zero_sum": is_zero_sum(history),
        "figure": asdict(figure) if figure else None,
        "best": _best_checkpoint_json(best, run_folder),
        "step_s": speed.step_s if speed else None,
        "clock": _thinned(clock, _CLOCK_POINTS),
        "ledger": dict(sorted(sums.items())) | totals,
        "alarms": [_alarm_json(name, steps) for name, steps in sorted(alarm_steps_of.items())],
        "warnings": list(_warnings_of_credit_unequal_to_reward(conservation, last.get("step", 0))),
    }


def _alarm_json(metric: str, steps: Sequence[int]) -> dict[str, Any]:
    """Return an alarm with `ranges`: [first, last] step of each period in which it was raised without a break."""
    *game, _, role, kind = metric.removeprefix("game/").split("/")
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return {
        **{"name": metric, "game": game[0] if game else "", "role": role, "kind": kind, "ranges": ranges},
        **{"subject": alarm_subject(kind), "summary": alarm_summary(kind), "metric": watched_metric(role, kind)},
    }


def _best_checkpoint_json(best: BestEvaluationTracker, run_folder: RunFolder) -> dict[str, Any] | None:
    """Return the metric, step and value of the best evaluation, and `kept`: True if its checkpoint still exists.

    The result is None without `evaluate.keep_best`, and before the first evaluation.
    """
    if best.step is None:
        return None
    kept = (run_folder.checkpoints / f"{best.step:06d}").is_dir()
    return {"metric": best.metric, "step": best.step, "value": best.value, "kept": kept}


def _warnings_of_credit_unequal_to_reward(
    conservation_points_by_role: Mapping[str, Sequence[tuple[int, float]]], last_step: int
) -> Iterator[str]:
    """Yield a warning for each role whose credit did not add up to the reward in the last tenth of the steps.

    `conservation_points_by_role` maps the metric of a role to its (step, value).
    """
    for name, points in sorted(conservation_points_by_role.items()):
        late = [value for step, value in points if step >= 0.9 * last_step]
        role = name.removesuffix("/conservation").replace("credit/", "").removeprefix("game/")
        if warning := conservation_warning(role, fmean(late or [points[-1][1]])):
            yield warning


def curve_panels(
    runs: Sequence[Path], selection: CurveSelection, max_points: int, run_path_by_name: Mapping[str, Path]
) -> dict[str, Any]:
    """Return panels of lines with points [step, value, low, high, 1 if valid else 0]. The value of a gap is None.

    A line of more than `max_points` points is thinned to every nth point and the last. `run_path_by_name`: name ->
    folder of all runs of the page, also of those that cannot be read at present, so that every run keeps its colour.

    Raises:
        ScenarioError: if no run has one of the metrics.
    """
    selected, left_out = select_curves(runs, selection)
    styles = line_style_by_name(chain.from_iterable(selected.values()), run_path_by_name)
    panels: list[dict[str, Any]] = []
    for metric, lines in selected.items():
        panel_lines: list[dict[str, Any]] = []
        for name, points in lines.items():
            numbers: list[list[float | None]] = []
            for point in _thinned(points, max_points):
                value = point.value if point.measured else None
                numbers.append([point.step, value, point.low, point.high, int(point.valid)])
            panel_lines.append({"name": name, "points": numbers, **asdict(styles[name])})
        # A return's direction depends on whose it is: in a zero-sum game one side's gain is the other's loss.
        goal = better_direction(metric) if "eval/" in metric else None
        panels.append({"metric": metric, "goal": goal, **metric_meaning(metric)._asdict(), "lines": panel_lines})
    return {"panels": panels, "left_out": left_out}


def _thinned(points: Sequence[T], maximum: int) -> list[T]:
    """Return every nth point and the last: about `maximum` of them."""
    every = -(-len(points) // maximum) or 1
    return [*points[::every], *(points[-1:] if (len(points) - 1) % every else ())]


def compare_groups(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the settings of groups of runs, the differing settings, and final metrics with intervals.

    Of two groups, each metric has the `difference`: the value of the second minus that of the first.
    """
    described_groups: list[dict[str, Any]] = []
    for group in groups:
        described_groups.append({"name": group.name, "runs": [run.name for run in group.runs]})
    settings: list[dict[str, Any]] = []
    for path in dict.fromkeys(chain.from_iterable(group.settings for group in groups)):
        settings.append({"name": path, "values": [group.setting_as_yaml_text(path) for group in groups]})
    figures: list[dict[str, Any]] = []
    for name in select_summary_metrics(list(dict.fromkeys(chain.from_iterable(metric_rows_of_all_runs(groups))))):
        finals = [final_metric_of_group(group, name) for group in groups]
        values = [asdict(final) if final else None for final in finals]
        difference = _difference(*finals) if len(finals) == 2 else None
        goal = better_direction(name) if "eval/" in name else None
        figures.append({"name": name, "values": values, "difference": difference, "goal": goal})
    return {
        "groups": described_groups,
        "settings": settings,
        "differing": differing_settings(groups),
        "figures": figures,
    }


def _difference(
    first: FinalMetricOfRunGroup | None, second: FinalMetricOfRunGroup | None
) -> dict[str, float | None] | None:
    """Return the second value minus the first as JSON data, with a 95 % interval if both have one."""
    if first is None or second is None:
        return None
    low: float | None = None
    high: float | None = None
    if first.low is not None and first.high is not None and second.low is not None and second.high is not None:
        bounds = (first.low, first.value, first.high), (second.low, second.value, second.high)
        low, _, high = difference_interval(*bounds)
    return {"value": second.value - first.value, "low": low, "high": high}


def metric_rows(run_folder: RunFolder, offset: int, limit: int) -> dict[str, Any]:
    """Return `limit` rows of metrics, newest first from `offset` on, with the main metrics as columns."""
    steps = list(run_folder.rows())
    names = [name for name in dict.fromkeys(chain.from_iterable(steps)) if name != "step"]
    columns, losses = select_summary_metrics(names), list[str]()
    for name in names:
        if name.startswith("role/") and ("/reward/" in name or name.endswith(("/illegal", "/entropy"))):
            columns.append(name)
        elif name.startswith("policy/") and name.endswith(("/loss", "/grad_norm")):
            losses.append(name)
    columns += losses
    columns += ["time/step"] if "time/step" in names else []
    newest: list[dict[str, Any]] = []
    for row in steps[::-1][offset : offset + limit]:
        newest.append({name: row.get(name) for name in ("step", *columns)})
    return {"count": len(steps), "columns": columns, "rows": newest}


def step_metrics(run_folder: RunFolder, step: int) -> dict[str, Any]:
    """Return the metrics of one step, or {} if the step has no row."""
    return next((dict(row) for row in run_folder.rows() if row["step"] == step), {})


def recorded_environment(run_folder: RunFolder) -> dict[str, Any]:
    """Return the versions, machine and command recorded at the run's start as dotted name -> value, or {}."""
    try:
        return flatten_settings(read_environment(run_folder.path))
    except (ValueError, RunFolderError) as error:
        return {"environment.json": f"cannot be read: {error}"}
