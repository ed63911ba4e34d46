"""Data of learning curves: metric -> line -> points. Runs of equal settings may share a line with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from marl.core.statistics import student_t_interval
from marl.evaluation.evaluate import EXACT_METRICS, is_reliable_given_legal_mass
from marl.metrics.trajectory_metrics import held_out_metric_names, metric_names_in_all_games
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.run_groups import group_runs, runs_by_name

MAX_PANELS = 12
"""Maximum number of panels of a picture."""
ROLE_FIGURES = ("illegal", "entropy", "tokens", "turns")
"""Metrics of a role that are drawn after its rewards."""
Row = Mapping[str, Any]
PictureStyle = Literal["screen", "paper"]
"""Look of a picture: for a screen, or for a paper's column."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Value of a metric at one step."""

    step: int
    value: float
    low: float | None = None
    """Lower bound of the value's 95 % interval (None: not recorded)."""
    high: float | None = None
    """Upper bound of the value's 95 % interval (None: not recorded)."""
    valid: bool = True
    """False for an exact metric that is unreliable, because the policy rarely answers with a legal move."""
    measured: bool = True
    """False if the metric has no value (NaN) in this step, as of a role that did not play: the line has a gap."""


Curves = Mapping[str, Mapping[str, Sequence[CurvePoint]]]
"""Metric -> name of a run, group or role -> points of its line."""


@dataclass(frozen=True, slots=True)
class CurveSelection:
    """Selection of metrics and their grouping into lines and panels."""

    metrics: Sequence[str] = ()
    """Names of metrics (default: the main metrics of the runs)."""
    by: Literal["role"] | None = None
    """"role" draws one panel per metric with a line for each role, instead of one panel per role and metric."""
    band: Literal["seeds"] | None = None
    """"seeds" draws runs that differ only in their seeds as one line: their mean with a 95 % interval."""
    first: Sequence[str] = ()
    """Metrics that stand before the others of the default, such as main figures of runs; unmeasured ones are left
    out."""


def select_curves(run_paths: Sequence[Path], selection: CurveSelection) -> tuple[Curves, list[str]]:
    """Return the curves of `run_paths`, and the metrics omitted because a picture has `MAX_PANELS` panels.

    Raises:
        ScenarioError: if a folder contains no run, or no run has one of the metrics.
    """
    lines: dict[str, tuple[Sequence[Row], ...]] = {}
    if selection.band:
        for group in group_runs(run_paths):
            lines[group.name] = group.rows
    else:
        for run in run_paths:
            if not (run / "scenario.yaml").is_file():
                raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
        for name, run in runs_by_name(run_paths).items():
            lines[name] = (list(RunFolder(run).rows()),)
    rows = list(chain.from_iterable(chain.from_iterable(lines.values())))
    names = [name for name in dict.fromkeys(chain.from_iterable(rows)) if name != "step"]
    chosen, left_out = (
        (list(selection.metrics), []) if selection.metrics else _shown_and_omitted_metrics(rows, names, selection)
    )
    for name in chosen:
        if name not in names:
            choices = ", ".join(sorted(names)) or "nothing yet"
            raise ScenarioError(f"--metric {name}: not in these runs; they have: {choices}")
    curves: dict[str, dict[str, Sequence[CurvePoint]]] = {}
    for name in chosen:
        # Metrics `role/ROLE/METRIC` of several roles share one panel, named `role/*/METRIC`.
        role = name.split("/")[1] if selection.by and name.startswith("role/") else ""
        panel = curves.setdefault(f"role/*/{_metric_without_role_prefix(name)}" if role else name, {})
        for line, run_rows in lines.items():
            role_line = role if len(lines) == 1 else f"{line}: {role}"
            panel[role_line if role else line] = _curve_points_of_metric(run_rows, name)
    return curves, left_out


def _shown_and_omitted_metrics(
    rows: Sequence[Row], metrics: Sequence[str], selection: CurveSelection
) -> tuple[list[str], list[str]]:
    """Return (default metrics of one picture, further metrics beyond its limit of panels).

    By default: `selection.first`, success rates, returns, losses and exact metrics. With `by="role"`: rewards and
    answer statistics of each role.
    """
    if selection.by == "role":
        of_roles = [name for name in metrics if name.startswith("role/")]
        chosen = [name for name in of_roles if "/reward/" in name]
        for figure in ROLE_FIGURES:
            chosen += [name for name in of_roles if name.count("/") == 2 and name.endswith(figure)]
        panels = list(dict.fromkeys(map(_metric_without_role_prefix, chosen)))[:MAX_PANELS]
        drawn, left_out = list[str](), list[str]()
        for name in chosen:
            (drawn if _metric_without_role_prefix(name) in panels else left_out).append(name)
        return drawn, left_out
    # Returns that are always 0, as those of an agent without rewards, would be flat curves and are not drawn.
    nonzero: set[str] = set()
    for row in rows:
        nonzero.update(name for name, value in row.items() if value)
    wins, returns, losses = list[str](), list[str](), list[str]()
    for name in metrics:
        if name.startswith("eval/") and name.endswith(("/win", "/draw")) and name.count("/") == 2:
            wins.append(name)
        elif name.startswith("episode/return/") and name in nonzero:
            returns.append(name)
        elif name.startswith("policy/") and name.endswith("/loss"):
            losses.append(name)
    wins = wins or metric_names_in_all_games(("eval/random/win", "eval/minimax/draw"), metrics)
    exact = metric_names_in_all_games((*EXACT_METRICS, "eval/legal_mass"), metrics)
    chosen = [*held_out_metric_names(metrics), *wins, *returns, *losses, *exact] or list(metrics)[:4]
    chosen = list(dict.fromkeys([*(name for name in selection.first if name in metrics), *chosen]))
    return chosen[:MAX_PANELS], chosen[MAX_PANELS:]


def _metric_without_role_prefix(name: str) -> str:
    """Return a metric's name without the prefix `role/ROLE/`, such as `illegal` for `role/solver/illegal`."""
    return name.split("/", 2)[2]


def _curve_points_of_metric(rows_of_runs: Sequence[Sequence[Row]], metric: str) -> list[CurvePoint]:
    """Return the points of `metric` in one run, or its means over several runs at the steps common to all."""
    # A missing value of a role's metric is a gap in the curve: the role did not play, or got no reward.
    # Metrics such as those of evaluations exist in some steps only, and their points are connected.
    has_gaps = metric.startswith("role/") or "/role/" in metric
    curves: list[list[CurvePoint]] = []
    for rows in rows_of_runs:
        curves.append([])
        for row in rows if any(metric in row for row in rows) else ():
            if metric in row:
                low, high, valid = (
                    row.get(f"{metric}_low"),
                    row.get(f"{metric}_high"),
                    is_reliable_given_legal_mass(row, metric),
                )
                curves[-1].append(CurvePoint(row["step"], row[metric], low, high, valid=valid))
            elif has_gaps:
                curves[-1].append(CurvePoint(row["step"], nan, measured=False))
    if len(curves) == 1:
        return curves[0]
    # Runs that lack the metric do not count in the mean.
    measured = [{point.step: point for point in curve} for curve in curves if curve]
    means: list[CurvePoint] = []
    for step in measured[0] if measured else ():
        values, valid, measured_by_all = list[float](), True, True
        for points in measured:
            if step in points:
                values.append(points[step].value)
                valid = valid and points[step].valid
                measured_by_all = measured_by_all and points[step].measured
        if len(values) < len(measured):
            continue
        mean, low, high = fmean(values), None, None
        # Student's t needs two finite values.
        if len(values) > 1 and all(map(isfinite, values)):
            low, mean, high = student_t_interval(values)
        means.append(CurvePoint(step, mean, low, high, valid=valid, measured=measured_by_all))
    return means
