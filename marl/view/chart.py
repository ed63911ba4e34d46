"""Curves for a terminal, and learning curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"
Curve = Sequence[tuple[int, float]]


def spark(values: Sequence[float], width: int) -> str:
    """One line of bars: the values, averaged into at most `width` bins. None drawn without values."""
    if not values:
        return ""
    bins = _bins(values, width)
    low, high = min(bins), max(bins)
    span = (high - low) or 1.0
    return "".join(_BARS[min(7, int((value - low) / span * 8))] for value in bins)


def _bins(values: Sequence[float], width: int) -> list[float]:
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def chart(curve: Curve, size: tuple[int, int] = (60, 10)) -> str:
    """A curve drawn in text, with its scale on the left and its steps below."""
    width, height = size
    bins = _bins([value for _, value in curve], width)
    low, high = min(0.0, *bins), max(0.0, *bins)
    span = (high - low) or 1.0
    rows = []
    for row in range(height, 0, -1):
        label = f"{low + span * row / height:8.3f}" if row in (1, height) or row == (height + 1) // 2 else " " * 8
        rows.append(f"{label} ┤" + "".join(_cell((value - low) / span * height - (row - 1)) for value in bins))
    first, last = str(curve[0][0]), str(curve[-1][0]) if len(curve) > 1 else ""
    below = f"{' ' * 9}└{'─' * len(bins)}\n{' ' * 10}{first}{last.rjust(max(len(bins) - len(first), len(last) + 1))}"
    return "\n".join([*rows, below])


def _cell(fill: float) -> str:
    if fill <= 0:
        return " "
    return _BARS[min(7, int(fill * 8))]


def draw(path: Path, curves: Mapping[str, Mapping[str, Curve]]) -> None:
    """A PNG with a panel per metric and a line per run: metric -> run -> curve."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(2, len(curves))
    rows = -(-len(curves) // columns)
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
