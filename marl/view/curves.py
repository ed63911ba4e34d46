"""Learning curves as terminal text, and as a picture (`marl plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Literal

from marl.evaluation.evaluate import MIN_LEGAL_MASS
from marl.runs.symlinks import path_without_symlinks
from marl.scenario.load import ScenarioError
from marl.view.colours import line_style_by_name
from marl.view.curve_data import CurveSelection, PictureStyle, select_curves
from marl.view.run_groups import runs_by_name

_BARS = "▁▂▃▄▅▆▇█"
Curve = Sequence[tuple[int, float]]
"""Points (step, value) of a metric."""
PICTURE_SUFFIXES = (".pdf", ".png", ".svg")
"""Supported suffixes of picture files."""
_VECTOR_SUFFIXES = (".pdf", ".svg")
"""Suffixes of vector formats, as publishers ask for them."""


def plot_curves(
    runs: Sequence[Path],
    metrics: Sequence[str],
    picture_file: Path | None,
    by: Literal["role"] | None = None,
    band: Literal["seeds"] | None = None,
    style: PictureStyle = "screen",
) -> str:
    """Write a picture with a panel for each metric and a line for each run; return the terminal output of `marl plot`.

    The output is a text chart of the first metric and the picture's path.

    Args:
        runs: run folders.
        metrics: names of metrics (default: the main metrics of the runs).
        picture_file: file of the picture (default: `curves.png`, or `curves.pdf` for a paper, in the first run).
        by: "role" draws one panel per metric with a line for each role.
        band: "seeds" draws runs that differ only in their seeds as one line with a 95 % interval.
        style: "paper" draws vectors that are one or two columns of a paper wide, in 7 and 8 point Times.

    Raises:
        ScenarioError: if a folder contains no run, no run has the metric, or the suffix is not supported.
        RunFolderError: if the picture cannot be written.
    """
    suffixes = _VECTOR_SUFFIXES if style == "paper" else PICTURE_SUFFIXES
    if picture_file is not None and picture_file.suffix not in suffixes:
        what = "format of --style paper" if picture_file.suffix in PICTURE_SUFFIXES else "such format"
        raise ScenarioError(f"--out {picture_file}: no {what} {picture_file.suffix!r}; choices: {', '.join(suffixes)}")
    curves, left_out = select_curves(runs, CurveSelection(metrics, by, band))
    if not curves:
        raise ScenarioError(f"{runs[0]}: nothing to plot yet")
    from marl.view.pictures import save_curves  # imported late, because matplotlib takes long to import

    file = picture_file or path_without_symlinks(runs[0], "curves.pdf" if style == "paper" else "curves.png")
    styles = line_style_by_name(chain.from_iterable(curves.values()), runs_by_name(runs))
    save_curves(file, curves, styles, style)
    # As text, only the first evaluation's curve is shown, or the first curve if there is no evaluation.
    name = next((name for name in curves if name.startswith("eval/")), next(iter(curves)))
    points = next(filter(None, curves[name].values()))
    lines = [name, text_chart([(point.step, point.value) for point in points])]
    if invalid_count := sum(not point.valid for point in points):
        lines.append(f"{invalid_count} of {len(points)} do not count: legal mass below {MIN_LEGAL_MASS}")
    if left_out:
        lines.append(f"not drawn, name them by --metric: {', '.join(left_out)}")
    return "\n".join([*lines, str(file)])


def sparkline(values: Sequence[float], width: int) -> str:
    """Return one line of bars for `values`, averaged into at most `width` bins, or "" without values."""
    if not values:
        return ""
    bins = _bin_means(values, width)
    low, high = _finite_range(bins)
    bars = ""
    for value in bins:
        bars += _BARS[min(7, int(_relative_position(value, low, high) * 8))] if isfinite(value) else " "
    return bars


def _finite_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the minimum and maximum of the finite values, or zeros without one."""
    finite = list(filter(isfinite, values))
    return min(finite, default=0.0), max(finite, default=0.0)


def _relative_position(value: float, minimum: float, maximum: float) -> float:
    """Return the relative position of `value` between `minimum` and `maximum`, from 0 to 1."""
    # Values are halved first, because the difference of two finite floats may overflow to infinity.
    return (value / 2 - minimum / 2) / ((maximum / 2 - minimum / 2) or 0.5)


def _bin_means(values: Sequence[float], width: int) -> list[float]:
    """Return the means of up to `width` consecutive bins of `values`."""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def text_chart(curve: Curve, width: int = 60, height: int = 10) -> str:
    """Return a text chart with its scale on the left and steps below. `width` and `height` are in characters."""
    bins = _bin_means([value for _, value in curve], width)
    low, high = _finite_range([0.0, *bins])
    rows: list[str] = []
    for row in range(height, 0, -1):
        label = " " * 8
        if row in (1, height, (height + 1) // 2):
            share = row / height
            value = low * (1 - share) + (high if high > low else low + 1.0) * share
            label = f"{value:8.3f}" if abs(value) < 1e4 else f"{value:8.2g}"
        cells = ""
        for value in bins:
            fill = _relative_position(value, low, high) * height - (row - 1)
            # A non-finite value fails a comparison, so its cell stays empty.
            cells += _BARS[min(7, int(fill * 8))] if 0 < fill < inf else " "
        rows.append(f"{label} ┤{cells}")
    first, last = str(curve[0][0]), str(curve[-1][0]) if len(curve) > 1 else ""
    below = f"{' ' * 9}└{'─' * len(bins)}\n{' ' * 10}{first}{last.rjust(max(len(bins) - len(first), len(last) + 1))}"
    return "\n".join([*rows, below])
