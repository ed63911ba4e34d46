"""Learning curves as terminal text, and as a picture (`marl plot`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from marl.core.errors import Writing
from marl.evaluation.evaluate import LEGAL_MASS
from marl.runs.symlinks import path_without_symlinks
from marl.scenario.load import ScenarioError
from marl.view.curve_data import Curves, CurveSelection, Point, select_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BARS = "▁▂▃▄▅▆▇█"
_FEW = 50
"""Maximum number of points with individual markers. A curve of one point would be invisible without a marker."""
Curve = Sequence[tuple[int, float]]
"""(step, value) of a metric."""
PICTURE_SUFFIXES = (".pdf", ".png", ".svg")
"""Supported suffixes of picture files."""


def plot(
    runs: Sequence[Path],
    metrics: Sequence[str],
    out: Path | None,
    by: Literal["role"] | None = None,
    band: Literal["seeds"] | None = None,
) -> str:
    """Draw a panel per metric and a line per run; return the main curve as text and the file's name.

    `by` and `band` are explained in `CurveSelection`.

    Raises:
        ScenarioError: if a folder contains no run, no run has the metric, or the suffix is not supported.
        FolderError: if the picture cannot be written.
    """
    if out is not None and out.suffix not in PICTURE_SUFFIXES:
        raise ScenarioError(f"--out {out}: no such format {out.suffix!r}; choices: {', '.join(PICTURE_SUFFIXES)}")
    curves, left_out = select_curves(runs, CurveSelection(metrics, by, band))
    if not curves:
        raise ScenarioError(f"{runs[0]}: nothing to plot yet")
    file = out or path_without_symlinks(runs[0], "curves.png")
    save_curves(file, curves)
    lines = list(_in_text(curves))
    if left_out:
        lines.append(f"not drawn, name them by --metric: {', '.join(left_out)}")
    return "\n".join([*lines, str(file)])


def _in_text(curves: Curves) -> Iterator[str]:
    """Yield the first evaluation curve, else the first curve, as text, with a remark on invalid points."""
    name = next((name for name in curves if name.startswith("eval/")), next(iter(curves)))
    points = next(filter(None, curves[name].values()))
    yield name
    yield text_chart([(point.step, point.value) for point in points])
    if low := sum(not point.valid for point in points):
        yield f"{low} of {len(points)} do not count: legal mass below {LEGAL_MASS}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return one line of bars for `values`, averaged into at most `width` bins, or "" without values."""
    if not values:
        return ""
    bins = _bins(values, width)
    low, high = _range(bins)
    return "".join(_BARS[min(7, int(_share(value, low, high) * 8))] if isfinite(value) else " " for value in bins)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the minimum and maximum of the finite values."""
    finite = [value for value in values if isfinite(value)]
    return min(finite, default=0.0), max(finite, default=0.0)


def _share(value: float, low: float, high: float) -> float:
    """Return the relative position of `value` between `low` and `high`, from 0 to 1."""
    # Halved first: the difference of two finite floats may overflow to infinity.
    return (value / 2 - low / 2) / ((high / 2 - low / 2) or 0.5)


def _bins(values: Sequence[float], width: int) -> list[float]:
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def text_chart(curve: Curve, width: int = 60, height: int = 10) -> str:
    """Return a text chart with its scale on the left and steps below. `width` and `height` are in characters."""
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
    # NaN fails both comparisons, so a non-finite value leaves the cell empty.
    return _BARS[min(7, int(fill * 8))] if 0 < fill < inf else " "


def save_curves(path: Path, curves: Curves) -> None:
    """Write a picture with a panel per metric and a line per run. `curves` maps metric -> run -> curve.

    Raises:
        FolderError: if the picture cannot be written.
    """
    import matplotlib as mpl

    # Matplotlib would parse a `$` in a metric's or run's name as the start of a formula.
    with mpl.rc_context({"text.parse_math": False, "text.usetex": False}), Writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        curves_figure(curves).savefig(path, dpi=130, bbox_inches="tight")


def curves_figure(curves: Curves) -> Figure:
    """Return the figure of `curves` (metric -> run -> curve). A run has one colour in all panels."""
    from matplotlib.figure import Figure

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
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, label=run) for run, colour in colours.items()] if len(colours) > 1 else []
    points = [point for by_run in curves.values() for curve in by_run.values() for point in curve]
    if not all(point.valid for point in points):
        label = f"does not count: legal mass below {LEGAL_MASS}"
        lines.append(Line2D([], [], color="gray", linestyle="--", marker="o", mfc="white", markersize=4, label=label))
    if lines:
        below, columns = (0.5, 0), min(4, len(lines))
        figure.legend(handles=lines, loc="upper center", bbox_to_anchor=below, ncols=columns, fontsize=9, frameon=False)
