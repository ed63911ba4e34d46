"""`marl plot`: learning curves of one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl.evaluation.evaluate import EXACT, counts
from marl.metrics.summaries import held_out_measures
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError
from marl.view.chart import Curve, chart, draw

_DEFAULTS = ("eval/nashconv", "eval/optimal", "eval/random/win", "eval/minimax/draw", "eval/legal_mass")


def plot(runs: Sequence[Path], metrics: Sequence[str], out: Path | None) -> str:
    """Draw a PNG, a panel per metric and a line per run; returns the first curve in text and the file's name.

    Raises:
        ScenarioError: if a folder holds no run, or no run has the metric; names those there are.
    """
    rows = {_label(run): _rows(run) for run in runs}
    known = sorted({name for lines in rows.values() for row in lines for name in row if name != "step"})
    usual = [name for name in _DEFAULTS if name in known] + held_out_measures(known)
    chosen = list(metrics) or usual or known[:4]
    for name in chosen:
        if name not in known:
            raise ScenarioError(f"--metric {name}: not in these runs; they have: {', '.join(known) or 'nothing yet'}")
    curves = {name: {run: curve for run, lines in rows.items() if (curve := _curve(lines, name))} for name in chosen}
    curves = {name: drawn for name, drawn in curves.items() if drawn}
    if not curves:
        raise ScenarioError(f"{runs[0]}: nothing to plot yet")
    file = out or runs[0] / "curves.png"
    draw(file, curves)
    name, first = next(iter(curves.items()))
    return f"{name}\n{chart(next(iter(first.values())))}\n{file}"


def _label(run: Path) -> str:
    return run.resolve().name


def _rows(run: Path) -> list[dict[str, Any]]:
    folder = RunFolder(run)
    if not (run / "scenario.yaml").is_file():
        raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
    return list(folder.rows()) if folder.metrics.is_file() else []


def _curve(rows: Sequence[dict[str, Any]], name: str) -> Curve:
    """Where the metric was measured; an exact figure only where it counts."""
    return [(row["step"], row[name]) for row in rows if name in row and (name not in EXACT or counts(row))]
