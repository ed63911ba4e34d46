"""Pictures of learning curves and of cross-play tables. The module is imported where a picture is asked for, as
matplotlib takes long to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.evaluation.cross_table import CrossPlayTable
from marl.evaluation.evaluate import MIN_LEGAL_MASS
from marl.view.colours import LineStyle, colours_by_name
from marl.view.curve_data import CurvePoint, Curves, PictureStyle
from marl.view.metric_units import metric_meaning
from marl.view.tournament_table import shortest_distinct_path_suffixes

_MAX_MARKED_POINTS = 50
"""Maximum number of points with individual markers. A curve of one point would be invisible without a marker."""
_MAX_NUMBERED_PLAYERS = 15
"""Maximum number of players of a heat map whose cells show numbers."""
_DARK_SHARE = 0.6
"""Fraction of the largest absolute mean above which a cell is dark, so that its number is white."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Sizes of a picture of curves."""

    width_by_columns: Mapping[int, float]
    """Number of panels side by side -> width of the picture [inches]."""
    panel_height: float
    """Height of a panel with its title and axis [inches]."""
    title_size: float
    """Font size of titles [points]."""
    text_size: float
    """Font size of the legend [points]."""
    line_width: float
    """Width of a line [points]."""
    settings: Mapping[str, Any]
    """Settings of matplotlib."""


_SCREEN = _Look({1: 6.5, 2: 13.0, 3: 19.5}, 3.6, 10, 9, 1.4, {})
_PAPER_FONT = {
    # STIX is a Times that comes with matplotlib, so a picture is the same on every machine.
    **{"font.family": "STIXGeneral", "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7},
    **{"axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.linewidth": 0.5},
    # Publishers refuse Type 3 fonts, matplotlib's default.
    **{"pdf.fonttype": 42, "ps.fonttype": 42},
}
_PAPER = _Look({1: 3.25, 2: 6.75, 3: 6.75}, 2.0, 8, 8, 1.0, _PAPER_FONT)
"""Widths of one column and of both columns of a page of ICML; no text is smaller than 7 points."""
_LOOKS = {"screen": _SCREEN, "paper": _PAPER}


def save_curves(
    picture_file: Path,
    curves: Curves,
    style_by_line: Mapping[str, LineStyle] | None = None,
    style: PictureStyle = "screen",
) -> None:
    """Write a picture with a panel per metric and a line per run. `curves` maps metric -> line -> curve, and
    `style_by_line` line -> style (default: a colour of its own for each line, in order).

    Raises:
        RunFolderError: if the picture cannot be written.
    """
    # Matplotlib would parse a `$` in a metric's or run's name as the start of a formula.
    settings: dict[Any, Any] = {**_LOOKS[style].settings, "text.parse_math": False, "text.usetex": False}
    with mpl.rc_context(settings), RaiseRunFolderErrorOnFailedWrite(picture_file):
        picture_file.parent.mkdir(parents=True, exist_ok=True)
        curves_figure(curves, style_by_line, style).savefig(picture_file, dpi=130)


def curves_figure(
    curves: Curves, style_by_line: Mapping[str, LineStyle] | None = None, style: PictureStyle = "screen"
) -> Figure:
    """Return the figure of `curves` (metric -> line -> curve). A line has one style in all panels."""
    if style_by_line is None:
        colours = colours_by_name(dict.fromkeys(chain.from_iterable(curves.values())))
        style_by_line = {line: LineStyle(colour, (), (line,)) for line, colour in colours.items()}
    look = _LOOKS[style]
    columns = min(len(curves), 2 if len(curves) <= 4 else 3)
    rows = -(-len(curves) // columns)
    width = look.width_by_columns[columns]
    figure = Figure(figsize=(width, look.panel_height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    drawn: dict[str, LineStyle] = {}
    has_invalid_points = False
    for axis, (metric, by_run) in zip(axes, curves.items(), strict=False):
        widths = _line_widths(by_run, look.line_width)
        for run, points in by_run.items():
            drawn[run] = style_by_line[run]
            has_invalid_points |= _draw_curve(axis, points, style_by_line[run], widths[run])
        axis.set_title(metric, fontsize=look.title_size)
        axis.set_xlabel("step")
        axis.set_ylabel(metric_meaning(metric).unit)
        axis.grid(alpha=0.25)
        if metric.startswith("eval/") and metric.endswith("/legal_mass"):
            axis.set_ylim(0, 1.02)  # automatic limits would magnify differences of 0.001
    for axis in axes[len(curves) :]:
        axis.set_visible(False)

    # A legend below all panels is needed for several runs, or to explain invalid points of a single run.
    lines: list[Line2D] = []
    if len(drawn) > 1:
        lines = [
            Line2D([], [], color=line.colour, linestyle=_line_style(line), label=run) for run, line in drawn.items()
        ]
    if has_invalid_points:
        label = f"does not count: legal mass below {MIN_LEGAL_MASS}"
        lines.append(Line2D([], [], color="gray", linestyle="--", marker="o", mfc="white", markersize=4, label=label))
    if lines:
        entry_width = 0.6 + look.text_size / 140 * max(len(str(line.get_label())) for line in lines)
        columns = max(1, min(4, len(lines), int(width / entry_width)))
        figure.legend(handles=lines, loc="outside lower center", ncols=columns, fontsize=look.text_size, frameon=False)
    return figure


def _line_widths(curve_by_line: Mapping[str, Sequence[CurvePoint]], width: float) -> dict[str, float]:
    """Return line -> width of a panel's lines. A line is widened under each later one that covers most of it, so that
    its edges stay visible."""
    values = {line: {point.step: point.value for point in curve} for line, curve in curve_by_line.items()}
    finite = [value for by_step in values.values() for value in by_step.values() if isfinite(value)]
    tolerance = 0.005 * (max(finite) - min(finite)) if finite else 0.0
    widths: dict[str, float] = {}
    names = list(values)
    for index, name in enumerate(names):
        widths[name] = width
        for later in names[index + 1 :]:
            covered = sum(
                abs(value - values[later].get(step, nan)) <= tolerance for step, value in values[name].items()
            )
            if covered > len(values[name]) / 2:
                widths[name] += 2 * width
    return widths


def _line_style(style: LineStyle) -> Any:
    """Return matplotlib's name of a dash pattern."""
    return (0, tuple(style.dash)) if style.dash else "-"


def _draw_curve(axis: Any, points: Sequence[CurvePoint], style: LineStyle, width: float) -> bool:
    """Draw a curve with its intervals; return True if it has invalid points, which are hollow and dashed.

    `width` is that of its line [points].
    """
    colour = style.colour
    steps, values, valid_values, invalid, bounded = [], [], [], [], []
    for point in points:
        steps.append(point.step)
        values.append(point.value)
        valid_values.append(point.value if point.valid else nan)
        if not point.valid:
            invalid.append((point.step, point.value))
        if point.low is not None:
            bounded.append((point.step, point.low, point.high))
    if invalid:
        axis.plot(steps, values, color=colour, linewidth=0.7 * width, linestyle="--", alpha=0.6)
        axis.plot(*zip(*invalid, strict=True), color=colour, linestyle="", marker="o", mfc="white", markersize=4)
    # A value between two gaps is no line, so only a marker makes it visible.
    isolated = _indices_of_isolated_points(valid_values) if len(points) > _MAX_MARKED_POINTS else None
    look = {"color": colour, "linewidth": width, "linestyle": _line_style(style)}
    axis.plot(steps, valid_values, marker="o", markersize=1.6 + width, markevery=isolated, **look)
    if bounded:
        axis.fill_between(*zip(*bounded, strict=True), color=colour, alpha=0.15, linewidth=0)
    return bool(invalid)


def _indices_of_isolated_points(values: Sequence[float]) -> list[int]:
    """Return the indices of values between two gaps (NaN)."""
    padded = [nan, *values, nan]
    return [i for i in range(len(values)) if not isnan(values[i]) and isnan(padded[i]) and isnan(padded[i + 2])]


def save_heat_map(picture_file: Path, table: CrossPlayTable) -> None:
    """Write a picture of the mean returns of rows against columns.

    Raises:
        RunFolderError: if the picture cannot be written.
    """
    # Matplotlib would parse a `$` in a player's name as the start of a formula.
    with (
        mpl.rc_context({"text.parse_math": False, "text.usetex": False}),
        RaiseRunFolderErrorOnFailedWrite(picture_file),
    ):
        picture_file.parent.mkdir(parents=True, exist_ok=True)
        means: list[list[float]] = []
        played_means: dict[tuple[int, int], float] = {}
        for row, cells in enumerate(table.score_matrix):
            means.append([])
            for column, cell in enumerate(cells):
                means[-1].append(cell.mean if cell else nan)
                if cell and not isnan(cell.mean):
                    played_means[row, column] = cell.mean
        names, numbers = shortest_distinct_path_suffixes(table.names), range(len(table.names))
        figure = Figure(figsize=(2.5 + 0.6 * len(names), 1.5 + 0.5 * len(names)))
        axis = figure.subplots()
        maximum = max(map(abs, played_means.values()), default=1.0) or 1.0
        image = axis.imshow(means, cmap="RdBu", vmin=-maximum, vmax=maximum)
        axis.set_xticks(numbers, names, rotation=90, fontsize=8)
        axis.set_yticks(numbers, names, fontsize=8)
        axis.set_title("mean return of the row against the column", fontsize=10)
        if len(names) <= _MAX_NUMBERED_PLAYERS:
            for (row, column), mean in played_means.items():
                colour = "white" if abs(mean) > _DARK_SHARE * maximum else "black"
                axis.text(column, row, f"{mean:.2f}", ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(image, ax=axis)
        figure.savefig(picture_file, dpi=130, bbox_inches="tight")
