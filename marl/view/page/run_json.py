"""Runs as plain data for the page: curves, alarms, settings and their differences, rows of metrics, what a run cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from marl.metrics.alarms import is_alarm
from marl.runs.run_folder import RunFolder
from marl.text import read_json
from marl.view.compare import default_figures, final_figure
from marl.view.curve_sets import CurveChoice, curve_set
from marl.view.run_groups import RunGroup, differing, flat

MOST_POINTS = 2000
"""Most points of a curve that the page draws."""
_SUMS = ("time/", "credit/tokens")
"""Metrics of a step that add up over a run."""
_TOTALS = ("step/tokens", "step/eval_tokens")
"""Metrics that count from the run's start."""
Row = Mapping[str, Any]


def summary(home: RunFolder) -> dict[str, Any]:
    """Return how far a run is, its alarms, and its tokens, time and money."""
    last: Row = {}
    sums: dict[str, float] = defaultdict(float)
    held: dict[str, list[int]] = defaultdict(list)
    names: dict[str, None] = {}
    for row in home.rows():
        last = row
        names |= dict.fromkeys(row)
        for name, value in row.items():
            if name.startswith(_SUMS) and isfinite(value):
                sums[name] += value
            elif value and is_alarm(name):
                held[name].append(row["step"])
    totals = {name: value for name, value in last.items() if name in _TOTALS or _is_cost(name)}
    return {
        "step": last.get("step", 0),
        "metrics": [name for name in names if name != "step"],
        "ledger": dict(sorted(sums.items())) | totals,
        "alarms": [_alarm(name, steps) for name, steps in sorted(held.items())],
    }


def _is_cost(name: str) -> bool:
    return name.startswith("policy/") and "/total_" in name


def _alarm(name: str, steps: Sequence[int]) -> dict[str, Any]:
    *game, _, role, kind = name.removeprefix("game/").split("/")
    return {"name": name, "game": game[0] if game else "", "role": role, "kind": kind, "ranges": list(_ranges(steps))}


def _ranges(steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of steps without a gap."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(steps)) if b != a + 1]
    for begin, end in pairwise([0, *breaks, len(steps)]):
        yield steps[begin], steps[end - 1]


def alarm_steps(home: RunFolder, name: str) -> tuple[int, ...]:
    """Return the steps in which an alarm held."""
    return tuple(row["step"] for row in home.rows() if row.get(name))


def curves(runs: Sequence[Path], choice: CurveChoice, most: int = MOST_POINTS) -> dict[str, Any]:
    """Return panels of lines; a point is [step, value, low, high, 1 if it counts else 0].

    Of a line with more than `most` points, every nth is returned, and the last.

    Raises:
        ScenarioError: if no run has one of the metrics.
    """
    drawn, left_out = curve_set(runs, choice)
    panels = []
    for metric, lines in drawn.items():
        shown = []
        for name, points in lines.items():
            every = -(-len(points) // most) or 1
            thinned = [points[i] for i in range(len(points)) if i % every == 0 or i == len(points) - 1]
            shown.append({"name": name, "points": [[p.step, p.value, p.low, p.high, int(p.counts)] for p in thinned]})
        panels.append({"metric": metric, "lines": shown})
    return {"panels": panels, "left_out": left_out}


def comparison(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return the settings of groups of runs, those in which they differ, and their final figures with intervals."""
    names = list(dict.fromkeys(name for group in groups for rows in group.rows for row in rows for name in row))
    paths = dict.fromkeys(path for group in groups for path in group.settings)
    figures = default_figures(names)
    return {
        "groups": [{"name": group.name, "runs": [run.name for run in group.runs]} for group in groups],
        "settings": [{"name": path, "values": [group.setting(path) for group in groups]} for path in paths],
        "differing": differing(groups),
        "figures": [{"name": name, "values": [_figure(group, name) for group in groups]} for name in figures],
    }


def _figure(group: RunGroup, name: str) -> Mapping[str, Any] | None:
    figure = final_figure(group, name)
    return asdict(figure) if figure else None


def rows(home: RunFolder, offset: int, limit: int) -> dict[str, Any]:
    """Return rows of metrics, the newest first, with the columns that are looked at first."""
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
    known = list(names)
    roles = [n for n in known if n.startswith("role/") and ("/reward/" in n or n.endswith(("/illegal", "/entropy")))]
    losses = [name for name in known if name.startswith("policy/") and name.endswith(("/loss", "/grad_norm"))]
    return [*default_figures(known), *roles, *losses, "time/step"]


def row(home: RunFolder, step: int) -> dict[str, Any]:
    """Return all metrics of one step; {} if it has no row."""
    return next((dict(row) for row in home.rows() if row["step"] == step), {})


def environment(home: RunFolder) -> dict[str, Any]:
    """Return where a run was started: versions, machine, command; {} if that was not recorded."""
    file = home.path / "environment.json"
    value = read_json(file.read_text(errors="replace")) if file.is_file() else {}
    return flat(value) if isinstance(value, dict) else {}
