"""Drawings of figures: from before to after, a line a seed. Colours are the page's, so both themes are readable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_WIDTH, _MARGIN, _ROW = 120, 6, 8
"""Of a drawing, in pixels."""


def drawing(before: str, after: str) -> str:
    """Return an SVG of two cells of a table of figures, one number a seed; "" if they hold no pairs of numbers.

    The scale goes from 0 to 1, or further if a figure does.
    """
    starts, ends = numbers(before), numbers(after)
    starts = starts * len(ends) if len(starts) == 1 else starts
    if not ends or len(starts) != len(ends):
        return ""
    low, high = min(0.0, *starts, *ends), max(1.0, *starts, *ends)
    height = _ROW * len(ends) + _ROW
    label = f"from {_words(starts)} to {_words(ends)}, on a scale from {low:g} to {high:g}"
    lines = "".join(_lines(starts, ends, low, high))
    return (
        f'<svg role="img" aria-label="{label}" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
        f'<path d="M{_MARGIN} {height - 1}H{_WIDTH - _MARGIN}" stroke="currentColor" stroke-opacity=".4"/>{lines}</svg>'
    )


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell: `**.75, .80** (low .7)` holds .75 and .8. After a `;` comes another figure."""
    text = re.sub(r"\(.*?\)|\[.*?\]", "", cell).partition(";")[0].replace("\N{MINUS SIGN}", "-")
    return [float(number) for number in re.findall(r"-?\d*\.?\d+", text)]


def _words(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _lines(starts: Sequence[float], ends: Sequence[float], low: float, high: float) -> Iterator[str]:
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        x, to = (round(_MARGIN + (_WIDTH - 2 * _MARGIN) * (each - low) / (high - low), 1) for each in (start, end))
        y = _ROW * row + _ROW - 2
        yield f'<path d="M{x} {y}H{to}" stroke="currentColor" stroke-opacity=".5"/>'
        yield f'<circle cx="{x}" cy="{y}" r="2" fill="none" stroke="currentColor"/>'
        yield f'<circle cx="{to}" cy="{y}" r="3" style="fill: var(--md-typeset-a-color)"/>'
