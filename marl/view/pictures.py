"""Pictures of learning curves and of cross-play tables. The module is imported where a picture is asked for, as
matplotlib takes long to import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from marl.core.errors import Writing
from marl.evaluation.cross_table import CrossTable
from marl.evaluation.evaluate import LEGAL_MASS
from marl.view.curve_data import Curves, Point
from marl.view.tournament_table import short_names

_FEW = 50
"""Maximum number of points with individual markers. A curve of one point would be invisible without a marker."""
_MOST_NUMBERS = 15
"""Maximum number of players for numbers in the picture's cells."""
_DARK = 0.6
"""Fraction of the largest value above which a cell's colour is dark."""


def save_curves(path: Path, curves: Curves) -> None:
    """Write a picture with a panel per metric and a line per run. `curves` maps metric -> run -> curve.

    Raises:
        FolderError: if the picture cannot be written.
    """
    # Matplotlib would parse a `$` in a metric's or run's name as the start of a formula.
    with mpl.rc_context({"text.parse_math": False, "text.usetex": False}), Writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        curves_figure(curves).savefig(path, dpi=130, bbox_inches="tight")


def curves_figure(curves: Curves) -> Figure:
    """Return the figure of `curves` (metric -> run -> curve). A run has one colour in all panels."""
    columns = min(len(curves), 2 if len(curves) <= 4 else 3)
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(6.5 * columns, 3.6 * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    runs = dict.fromkeys(run for by_run in curves.values() for run in by_run)
    colours = {run: f"C{index % 10}" for index, run in enumerate(runs)}
    for axis, (metric, by_run) in zip(axes, curves.items(), strict=False):
        _panel(axis, metric, by_run, colours)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.tight_layout()
    _legend(figure, curves, colours)
    return figure


def _panel(axis: Any, metric: str, by_run: Mapping[str, Sequence[Point]], colours: Mapping[str, str]) -> None:
    for run, points in by_run.items():
        _line(axis, points, colours[run])
    axis.set_title(metric, fontsize=10)
    axis.set_xlabel("step")
    axis.grid(alpha=0.25)
    if metric.startswith("eval/") and metric.endswith("/legal_mass"):
        axis.set_ylim(0, 1.02)  # automatic limits would magnify differences of 0.001


def _line(axis: Any, points: Sequence[Point], colour: str) -> None:
    """Draw a curve with its intervals. Invalid points are hollow and dashed."""
    steps = [point.step for point in points]
    hollow = [point.step for point in points if not point.valid]
    if hollow:
        axis.plot(steps, [point.value for point in points], color=colour, linewidth=1, linestyle="--", alpha=0.6)
        values = [point.value for point in points if not point.valid]
        axis.plot(hollow, values, color=colour, linestyle="", marker="o", mfc="white", markersize=4)
    valid_values = [point.value if point.valid else nan for point in points]
    axis.plot(
        steps, valid_values, color=colour, linewidth=1.4, marker="o" if len(points) <= _FEW else None, markersize=3
    )
    bounded = [(point.step, point.low, point.high) for point in points if point.low is not None]
    if bounded:
        axis.fill_between(*zip(*bounded, strict=True), color=colour, alpha=0.15, linewidth=0)


def _legend(figure: Figure, curves: Curves, colours: Mapping[str, str]) -> None:
    """Add one legend below all panels, unless a single run has valid points only."""
    lines = [Line2D([], [], color=colour, label=run) for run, colour in colours.items()] if len(colours) > 1 else []
    points = [point for by_run in curves.values() for curve in by_run.values() for point in curve]
    if not all(point.valid for point in points):
        label = f"does not count: legal mass below {LEGAL_MASS}"
        lines.append(Line2D([], [], color="gray", linestyle="--", marker="o", mfc="white", markersize=4, label=label))
    if lines:
        below, columns = (0.5, 0), min(4, len(lines))
        figure.legend(handles=lines, loc="upper center", bbox_to_anchor=below, ncols=columns, fontsize=9, frameon=False)


def save_heat_map(path: Path, table: CrossTable) -> None:
    """Write a picture of the mean returns of rows against columns.

    Raises:
        FolderError: if the picture cannot be written.
    """
    # Matplotlib would parse a `$` in a player's name as the start of a formula.
    with mpl.rc_context({"text.parse_math": False, "text.usetex": False}), Writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _heat_map(table).savefig(path, dpi=130, bbox_inches="tight")


def _heat_map(table: CrossTable) -> Figure:
    means = [[cell.mean if cell else float("nan") for cell in row] for row in table.cells]
    names, numbers = short_names(table.names), range(len(table.names))
    figure = Figure(figsize=(2.5 + 0.6 * len(names), 1.5 + 0.5 * len(names)))
    axis = figure.subplots()
    reach = max((abs(mean) for _, _, mean in _numbered(means)), default=1.0) or 1.0
    image = axis.imshow(means, cmap="RdBu", vmin=-reach, vmax=reach)
    axis.set_xticks(numbers, names, rotation=90, fontsize=8)
    axis.set_yticks(numbers, names, fontsize=8)
    axis.set_title("mean return of the row against the column", fontsize=10)
    if len(names) <= _MOST_NUMBERS:
        for row, column, mean in _numbered(means):
            colour = "white" if abs(mean) > _DARK * reach else "black"
            axis.text(column, row, f"{mean:.2f}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=axis)
    return figure


def _numbered(means: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, float]]:
    """Yield row, column and value of every played pairing."""
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            if value == value:  # false for NaN, the value of an unplayed pairing
                yield row, column, value
