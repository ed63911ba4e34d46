"""Curves of runs, for pictures: metric -> line -> points; runs of equal settings as one line with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from marl.evaluation.evaluate import EXACT, counts
from marl.metrics.summaries import held_out_measures, of_games
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.statistics import student
from marl.view.run_groups import run_groups, run_names

MOST_PANELS = 12
ROLE_FIGURES = ("illegal", "entropy", "tokens", "turns")
"""Figures of roles that are drawn beside their rewards."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """A metric at one step."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None
    """Bounds of its interval, where it has one."""
    counts: bool = True
    """False for an exact figure with too little legal mass."""


Curves = Mapping[str, Mapping[str, Sequence[Point]]]
"""Metric -> name of a line -> its points."""


@dataclass(frozen=True, slots=True)
class CurveChoice:
    """Selection of what is drawn of runs."""

    metrics: Sequence[str] = ()
    """Names; none: what a person looks at first."""
    by: Literal["role"] | None = None
    """Draw one panel for a figure of all roles, with a line for each role, in place of one panel a metric."""
    band: Literal["seeds"] | None = None
    """Draw runs that differ in nothing but their seeds as one line: their mean, with a 95 % interval."""


def curve_set(runs: Sequence[Path], choice: CurveChoice) -> tuple[Curves, list[str]]:
    """Return the curves of these runs, and the metrics that are too many for one picture.

    Raises:
        ScenarioError: if a folder holds no run, or none has one of the metrics.
    """
    lines = {group.name: group.rows for group in run_groups(runs)} if choice.band else _single(runs)
    rows = [row for of_runs in lines.values() for of_run in of_runs for row in of_run]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))
    chosen, left_out = (list(choice.metrics), []) if choice.metrics else _default_metrics(rows, names, choice.by)
    for name in chosen:
        if name not in names:
            known = ", ".join(sorted(names)) or "nothing yet"
            raise ScenarioError(f"--metric {name}: not in these runs; they have: {known}")
    curves = {name: {line: _line(of_runs, name) for line, of_runs in lines.items()} for name in chosen}
    return (_by_role(curves) if choice.by else curves), left_out


def _single(runs: Sequence[Path]) -> dict[str, tuple[Sequence[Row], ...]]:
    """Return the rows of each run by its name."""
    for run in runs:
        if not (run / "scenario.yaml").is_file():
            raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
    return {name: (list(RunFolder(run).rows()),) for name, run in run_names(runs).items()}


def _default_metrics(rows: Sequence[Row], names: Sequence[str], by: str | None) -> tuple[list[str], list[str]]:
    """Return what a person looks at first, and what of it is too much for one picture.

    That is success with its intervals, what agents are paid, losses, and exact figures; of roles, what they are paid
    and how they answer.
    """
    if by == "role":
        chosen = _of_roles(names)
        panels = list(dict.fromkeys(map(_role_panel, chosen)))[:MOST_PANELS]
        return [n for n in chosen if _role_panel(n) in panels], [n for n in chosen if _role_panel(n) not in panels]
    paid = {name for row in rows for name, value in row.items() if value}
    wins = [name for name in names if name.startswith("eval/") and name.endswith(("/win", "/draw"))]
    wins = [name for name in wins if name.count("/") == 2] or of_games(("eval/random/win", "eval/minimax/draw"), names)
    chosen = held_out_measures(names) + wins
    chosen += [name for name in names if name.startswith("episode/return/") and name in paid]
    chosen += [name for name in names if name.startswith("policy/") and name.endswith("/loss")]
    chosen += of_games((*EXACT, "eval/legal_mass"), names)
    chosen = chosen or list(names)[:4]
    return chosen[:MOST_PANELS], chosen[MOST_PANELS:]


def _of_roles(names: Sequence[str]) -> list[str]:
    roles = [name for name in names if name.startswith("role/")]
    paid = [name for name in roles if "/reward/" in name]
    return paid + [name for figure in ROLE_FIGURES for name in roles if name.count("/") == 2 and name.endswith(figure)]


def _role_panel(name: str) -> str:
    """Return the figure of a role's metric: illegal of role/solver/illegal."""
    return name.split("/", 2)[2]


def _by_role(curves: Curves) -> Curves:
    """Return the curves of `role/ROLE/FIGURE` with a panel for each figure; others stay as they are."""
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
    """Return the points of one run, or the means of several at the steps that all of them measured."""
    curves = [_curve(rows, name) for rows in runs]
    if len(curves) == 1:
        return curves[0]
    measured = [{point.step: point for point in curve} for curve in curves if curve]
    common = [step for step in measured[0] if all(step in points for points in measured)] if measured else []
    return [_mean(step, [points[step] for points in measured]) for step in common]


def _mean(step: int, points: Sequence[Point]) -> Point:
    values = [point.value for point in points]
    sound = all(point.counts for point in points)
    if len(values) < 2 or not all(map(isfinite, values)):
        return Point(step, fmean(values), counts=sound)
    low, mean, high = student(values)
    return Point(step, mean, low, high, counts=sound)


def _curve(rows: Sequence[Row], name: str) -> list[Point]:
    """Return the steps in which the metric was measured."""
    return [
        Point(row["step"], row[name], row.get(f"{name}_low"), row.get(f"{name}_high"), counts=counts(row, name))
        for row in rows
        if name in row
    ]
