"""Learning curves as terminal text, and as a picture (`marl plot`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from marl.evaluation.evaluate import LEGAL_MASS
from marl.runs.symlinks import path_without_symlinks
from marl.scenario.load import ScenarioError
from marl.view.curve_data import Curves, CurveSelection, select_curves

if TYPE_CHECKING:
    pass

_BARS = "▁▂▃▄▅▆▇█"
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
    from marl.view.pictures import save_curves  # matplotlib takes long to import

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
