"""Data of learning curves: metric -> line -> points. Runs of equal settings may share a line with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from marl.core.statistics import student
from marl.evaluation.evaluate import EXACT, is_reliable
from marl.metrics.trajectory_metrics import held_out_metrics, matching_metrics
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.run_groups import run_groups, run_names

MAX_PANELS = 12
ROLE_FIGURES = ("illegal", "entropy", "tokens", "turns")
"""Metrics of a role that are drawn after its rewards."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """Value of a metric at one step."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None
    """Bounds of the value's interval, or None if the run recorded none."""
    valid: bool = True
    """False for an exact metric with too little legal probability mass."""


Curves = Mapping[str, Mapping[str, Sequence[Point]]]
"""Metric -> name of a line -> points."""


@dataclass(frozen=True, slots=True)
class CurveSelection:
    """Selection of metrics and their grouping into lines and panels."""

    metrics: Sequence[str] = ()
    """Names of metrics (default: the main metrics of the runs)."""
    by: Literal["role"] | None = None
    """"role" draws one panel per metric with a line for each role, instead of one panel per role and metric."""
    band: Literal["seeds"] | None = None
    """"seeds" draws runs that differ only in their seeds as one line: their mean with a 95 % interval."""


def select_curves(runs: Sequence[Path], choice: CurveSelection) -> tuple[Curves, list[str]]:
    """Return the curves of `runs`, and the metrics omitted because a picture has `MAX_PANELS` panels.

    Raises:
        ScenarioError: if a folder contains no run, or no run has one of the metrics.
    """
    lines = {group.name: group.rows for group in run_groups(runs)} if choice.band else _single(runs)
    rows = [row for of_runs in lines.values() for of_run in of_runs for row in of_run]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))
    chosen, left_out = (list(choice.metrics), []) if choice.metrics else _default_metrics(rows, names, choice.by)
    for name in chosen:
        if name not in names:
            choices = ", ".join(sorted(names)) or "nothing yet"
            raise ScenarioError(f"--metric {name}: not in these runs; they have: {choices}")
    curves = {name: {line: _line(of_runs, name) for line, of_runs in lines.items()} for name in chosen}
    return (_by_role(curves) if choice.by else curves), left_out


def _single(runs: Sequence[Path]) -> dict[str, tuple[Sequence[Row], ...]]:
    """Return run name -> rows of its metrics."""
    for run in runs:
        if not (run / "scenario.yaml").is_file():
            raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
    return {name: (list(RunFolder(run).rows()),) for name, run in run_names(runs).items()}


def _default_metrics(rows: Sequence[Row], names: Sequence[str], by: str | None) -> tuple[list[str], list[str]]:
    """Return the default metrics for one picture, and those beyond its limit of panels.

    By default: success rates, returns, losses and exact metrics. With `by="role"`: rewards and answer statistics of
    each role.
    """
    if by == "role":
        chosen = _of_roles(names)
        panels = list(dict.fromkeys(map(_role_panel, chosen)))[:MAX_PANELS]
        return [n for n in chosen if _role_panel(n) in panels], [n for n in chosen if _role_panel(n) not in panels]
    # The returns of an agent without rewards would be a flat line.
    nonzero = {name for row in rows for name, value in row.items() if value}
    wins = [name for name in names if name.startswith("eval/") and name.endswith(("/win", "/draw"))]
    wins = [name for name in wins if name.count("/") == 2] or matching_metrics(
        ("eval/random/win", "eval/minimax/draw"), names
    )
    chosen = held_out_metrics(names) + wins
    chosen += [name for name in names if name.startswith("episode/return/") and name in nonzero]
    chosen += [name for name in names if name.startswith("policy/") and name.endswith("/loss")]
    chosen += matching_metrics((*EXACT, "eval/legal_mass"), names)
    chosen = chosen or list(names)[:4]
    return chosen[:MAX_PANELS], chosen[MAX_PANELS:]


def _of_roles(names: Sequence[str]) -> list[str]:
    roles = [name for name in names if name.startswith("role/")]
    rewards = [name for name in roles if "/reward/" in name]
    return rewards + [
        name for figure in ROLE_FIGURES for name in roles if name.count("/") == 2 and name.endswith(figure)
    ]


def _role_panel(name: str) -> str:
    """Return the metric's name within its role, such as illegal for role/solver/illegal."""
    return name.split("/", 2)[2]


def _by_role(curves: Curves) -> Curves:
    """Merge the curves `role/ROLE/METRIC` of all roles into one panel per metric. Other curves are unchanged."""
    panels: dict[str, dict[str, Sequence[Point]]] = {}
    for name, lines in curves.items():
        if not name.startswith("role/"):
            panels[name] = dict(lines)
            continue
        role = name.split("/")[1]
        panel = panels.setdefault(f"role/*/{_role_panel(name)}", {})
        panel |= {role if len(lines) == 1 else f"{line}: {role}": points for line, points in lines.items()}
    return panels


def _line(runs: Sequence[Sequence[Row]], name: str) -> list[Point]:
    """Return the points of one run, or the means of several runs at the steps measured by all."""
    curves = [_curve(rows, name) for rows in runs]
    if len(curves) == 1:
        return curves[0]
    measured = [{point.step: point for point in curve} for curve in curves if curve]
    common = [step for step in measured[0] if all(step in points for points in measured)] if measured else []
    return [_mean(step, [points[step] for points in measured]) for step in common]


def _mean(step: int, points: Sequence[Point]) -> Point:
    values = [point.value for point in points]
    valid = all(point.valid for point in points)
    # Student's t needs two finite values.
    if len(values) < 2 or not all(map(isfinite, values)):
        return Point(step, fmean(values), valid=valid)
    low, mean, high = student(values)
    return Point(step, mean, low, high, valid=valid)


def _curve(rows: Sequence[Row], name: str) -> list[Point]:
    """Return a point for every step with a measurement of the metric."""
    points = []
    for row in rows:
        if name in row:
            low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
            points.append(Point(row["step"], row[name], low, high, valid=is_reliable(row, name)))
    return points
