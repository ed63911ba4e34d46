"""JSON data of runs for the page: curves, alarms, settings, metric rows and costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from marl.host.outside import parse_json
from marl.metrics.alarms import is_alarm_metric
from marl.runs.run_folder import RunFolder
from marl.view.curve_data import CurveSelection, select_curves
from marl.view.run_comparison import default_metrics, final_metric
from marl.view.run_groups import RunGroup, differing_settings, flatten_settings

MAX_CURVE_POINTS = 2000
"""Maximum number of points of a drawn curve."""
_SUMS = ("time/", "credit/tokens")
"""Prefixes of per-step metrics that are summed over a run."""
_TOTALS = ("step/tokens", "step/eval_tokens")
"""Metrics that are cumulative since the run's start."""
Row = Mapping[str, Any]


def summary(home: RunFolder) -> dict[str, Any]:
    """Return the progress, alarms, tokens, times and costs of a run."""
    # One pass over the rows: the metrics file of a long run is large.
    last: Row = {}
    sums: dict[str, float] = defaultdict(float)
    alarm_steps_of: dict[str, list[int]] = defaultdict(list)
    names: dict[str, None] = {}
    for row in home.rows():
        last = row
        names |= dict.fromkeys(row)
        for name, value in row.items():
            if name.startswith(_SUMS) and isfinite(value):
                sums[name] += value
            elif value and is_alarm_metric(name):
                alarm_steps_of[name].append(row["step"])
    totals = {name: value for name, value in last.items() if name in _TOTALS or _is_cost(name)}
    return {
        "step": last.get("step", 0),
        "metrics": [name for name in names if name != "step"],
        "ledger": dict(sorted(sums.items())) | totals,
        "alarms": [_alarm(name, steps) for name, steps in sorted(alarm_steps_of.items())],
    }


def _is_cost(name: str) -> bool:
    return name.startswith("policy/") and "/total_" in name


def _alarm(name: str, steps: Sequence[int]) -> dict[str, Any]:
    *game, _, role, kind = name.removeprefix("game/").split("/")
    return {"name": name, "game": game[0] if game else "", "role": role, "kind": kind, "ranges": list(_ranges(steps))}


def _ranges(steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each sequence of consecutive steps."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(steps)) if b != a + 1]
    for begin, end in pairwise([0, *breaks, len(steps)]):
        yield steps[begin], steps[end - 1]


def alarm_steps(home: RunFolder, name: str) -> tuple[int, ...]:
    """Return the steps with an active alarm `name`."""
    return tuple(row["step"] for row in home.rows() if row.get(name))


def curves(runs: Sequence[Path], choice: CurveSelection, max_points: int = MAX_CURVE_POINTS) -> dict[str, Any]:
    """Return panels of lines with points [step, value, low, high, 1 if valid else 0].

    A line of more than `max_points` points is thinned to every nth point and the last.

    Raises:
        ScenarioError: if no run has one of the metrics.
    """
    selected, left_out = select_curves(runs, choice)
    panels = []
    for metric, lines in selected.items():
        panel_lines = []
        for name, points in lines.items():
            every = -(-len(points) // max_points) or 1
            thinned = list(points[::every])
            if points and (len(points) - 1) % every:
                thinned.append(points[-1])
            panel_lines.append(
                {"name": name, "points": [[p.step, p.value, p.low, p.high, int(p.valid)] for p in thinned]}
            )
        panels.append({"metric": metric, "lines": panel_lines})
    return {"panels": panels, "left_out": left_out}


def comparison(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the settings of groups of runs, the differing settings, and final metrics with intervals."""
    names = list(dict.fromkeys(name for group in groups for rows in group.rows for row in rows for name in row))
    paths = dict.fromkeys(path for group in groups for path in group.settings)
    figures = default_metrics(names)
    return {
        "groups": [{"name": group.name, "runs": [run.name for run in group.runs]} for group in groups],
        "settings": [{"name": path, "values": [group.setting(path) for group in groups]} for path in paths],
        "differing": differing_settings(groups),
        "figures": [{"name": name, "values": [_figure(group, name) for group in groups]} for name in figures],
    }


def _figure(group: RunGroup, name: str) -> Mapping[str, Any] | None:
    figure = final_metric(group, name)
    return asdict(figure) if figure else None


def rows(home: RunFolder, offset: int, limit: int) -> dict[str, Any]:
    """Return rows of metrics, newest first, with the main columns."""
    steps = list(home.rows())
    names = dict.fromkeys(name for row in steps for name in row if name != "step")
    columns = [name for name in _columns(names) if name in names]
    newest = steps[::-1][offset : offset + limit]
    return {
        "count": len(steps),
        "columns": columns,
        "rows": [{k: r.get(k) for k in ("step", *columns)} for r in newest],
    }


def _columns(names: Iterable[str]) -> list[str]:
    available = list(names)
    roles = [
        n for n in available if n.startswith("role/") and ("/reward/" in n or n.endswith(("/illegal", "/entropy")))
    ]
    losses = [name for name in available if name.startswith("policy/") and name.endswith(("/loss", "/grad_norm"))]
    return [*default_metrics(available), *roles, *losses, "time/step"]


def row(home: RunFolder, step: int) -> dict[str, Any]:
    """Return the metrics of one step, or {} if the step has no row."""
    return next((dict(row) for row in home.rows() if row["step"] == step), {})


def environment(home: RunFolder) -> dict[str, Any]:
    """Return versions, machine and command of the run's start, or {} if the run did not record them."""
    file = home.path / "environment.json"
    value = parse_json(file.read_text(errors="replace")) if file.is_file() else {}
    return flatten_settings(value) if isinstance(value, dict) else {}
