"""Learning curves: as text for a terminal, and as a picture (`marl plot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any

from marl.evaluation.evaluate import EXACT, counts
from marl.metrics.summaries import held_out_measures
from marl.runs.links import expect_no_link
from marl.runs.run_folder import RunFolder
from marl.scenario.load import ScenarioError

_BARS = "▁▂▃▄▅▆▇█"
_DEFAULTS = ("eval/nashconv", "eval/optimal", "eval/random/win", "eval/minimax/draw", "eval/legal_mass")
Curve = Sequence[tuple[int, float]]
"""(step, value) of a metric."""


def plot(runs: Sequence[Path], metrics: Sequence[str], out: Path | None) -> str:
    """Draw a PNG with a panel per metric and a line per run; return the first curve in text and the file's name.

    Raises:
        ScenarioError: if a folder holds no run, or no run has the metric; names those there are.
    """
    rows = {run.resolve().name: _rows(run) for run in runs}
    known = sorted({name for lines in rows.values() for row in lines for name in row if name != "step"})
    defaults = [name for name in _DEFAULTS if name in known] + held_out_measures(known)
    chosen = list(metrics) or defaults or known[:4]
    for name in chosen:
        if name not in known:
            raise ScenarioError(f"--metric {name}: not in these runs; they have: {', '.join(known) or 'nothing yet'}")
    curves = {name: {run: curve for run, lines in rows.items() if (curve := _curve(lines, name))} for name in chosen}
    curves = {name: drawn for name, drawn in curves.items() if drawn}
    if not curves:
        raise ScenarioError(f"{runs[0]}: nothing to plot yet")
    file = out or expect_no_link(runs[0], "curves.png")
    draw(file, curves)
    name, first = next(iter(curves.items()))
    return f"{name}\n{chart(next(iter(first.values())))}\n{file}"


def _rows(run: Path) -> list[dict[str, Any]]:
    if not (run / "scenario.yaml").is_file():
        raise ScenarioError(f"{run}: no run here (no scenario.yaml)")
    return list(RunFolder(run).rows())


def _curve(rows: Sequence[dict[str, Any]], name: str) -> Curve:
    """Return the steps in which the metric was measured; of an exact figure, only those with enough legal mass."""
    return [(row["step"], row[name]) for row in rows if name in row and (name not in EXACT or counts(row))]


def spark(values: Sequence[float], width: int) -> str:
    """Return one line of bars: the values, averaged into at most `width` bins; "" without values."""
    if not values:
        return ""
    bins = _bins(values, width)
    low, high = _range(bins)
    return "".join(_BARS[min(7, int(_share(value, low, high) * 8))] if isfinite(value) else " " for value in bins)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and greatest of the finite values."""
    finite = [value for value in values if isfinite(value)]
    return min(finite, default=0.0), max(finite, default=0.0)


def _share(value: float, low: float, high: float) -> float:
    """Return how far `value` is on the way from `low` to `high`, from 0 to 1. Halves, as their difference is finite."""
    return (value / 2 - low / 2) / ((high / 2 - low / 2) or 0.5)


def _bins(values: Sequence[float], width: int) -> list[float]:
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def chart(curve: Curve, width: int = 60, height: int = 10) -> str:
    """Return a curve drawn in text, with its scale on the left and its steps below; sizes are in characters."""
    bins = _bins([value for _, value in curve], width)
    low, high = _range([0.0, *bins])
    rows = []
    for row in range(height, 0, -1):
        label = _label(low, high, row / height) if row in (1, height) or row == (height + 1) // 2 else " " * 8
        rows.append(f"{label} ┤" + "".join(_cell(_share(value, low, high) * height - (row - 1)) for value in bins))
    first, last = str(curve[0][0]), str(curve[-1][0]) if len(curve) > 1 else ""
    below = f"{' ' * 9}└{'─' * len(bins)}\n{' ' * 10}{first}{last.rjust(max(len(bins) - len(first), len(last) + 1))}"
    return "\n".join([*rows, below])


def _label(low: float, high: float, share: float) -> str:
    value = low * (1 - share) + (high if high > low else low + 1.0) * share
    return f"{value:8.3f}" if abs(value) < 1e4 else f"{value:8.2g}"


def _cell(fill: float) -> str:
    # Nothing is drawn for what is not finite.
    return _BARS[min(7, int(fill * 8))] if 0 < fill < inf else " "


def draw(path: Path, curves: Mapping[str, Mapping[str, Curve]]) -> None:
    """Write a PNG with a panel per metric and a line per run; `curves`: metric -> run -> curve."""
    import matplotlib as mpl

    mpl.use("Agg")
    columns = min(2, len(curves))
    rows = -(-len(curves) // columns)
    # Names are no formulas: a `$` in one of them would be an error, or drawn as mathematics.
    with mpl.rc_context({"text.parse_math": False, "text.usetex": False}):
        _draw(path, curves, rows, columns)


def _draw(path: Path, curves: Mapping[str, Mapping[str, Curve]], rows: int, columns: int) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=(6.5 * columns, 3.6 * rows), squeeze=False)
    for axis, (metric, runs) in zip(axes.flat, curves.items(), strict=False):
        _panel(axis, metric, runs)
    for axis in list(axes.flat)[len(curves) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, metric: str, runs: Mapping[str, Curve]) -> None:
    for run, curve in runs.items():
        axis.plot([step for step, _ in curve], [value for _, value in curve], label=run, linewidth=1.4)
    axis.set_title(metric, fontsize=10)
    axis.set_xlabel("step")
    axis.grid(alpha=0.25)
    if len(runs) > 1:
        axis.legend(fontsize=8)
