"""Pictures of game states as arrays. The module is imported where a picture is asked for, as matplotlib takes long to
import."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from marl.games.state_views import AgentView, merge_equal_views

_LINE, _CELL, _CHARACTER, _MARGIN, _GAP = 20, 40, 9, 12, 4
"""Height of a line of text, smallest width and height of a cell, width of a character, margin of the picture, and gap
between cards [pixels]."""
_FONT_SIZE = 14
_MAX_LINE_LENGTH = 72
"""Maximum number of characters of a line of text in a picture; longer lines are wrapped."""
_DPI = 72
"""Resolution at which a point of a font's size is one pixel."""


class _Canvas:
    """White picture on which texts and cells are placed by pixels from the top left corner."""

    def __init__(self, width: int, height: int) -> None:
        figure = Figure((width / _DPI, height / _DPI), dpi=_DPI)
        self.canvas = FigureCanvasAgg(figure)
        self._axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self._axes.set_axis_off()

    def draw_text(self, x: float, y: float, text: str, *, centred: bool = False) -> None:
        # Matplotlib would parse a `$` in a state as the start of a formula.
        alignment = "center" if centred else "left"
        self._axes.text(
            *(x, y, text), family="monospace", fontsize=_FONT_SIZE, ha=alignment, va="center", parse_math=False
        )

    def draw_cell(self, x: float, y: float, width: float, symbol: str) -> None:
        self._axes.add_patch(Rectangle((x, y), width, _CELL, facecolor="#f4f1ea", edgecolor="#555555"))
        self.draw_text(x + width / 2, y + _CELL / 2, symbol, centred=True)

    def draw_card(self, x: float, y: float, width: float, symbol: str) -> None:
        face = "#f8f8ff" if symbol else "#e4e4e4"
        corner, size = (x + _GAP, y + _GAP), (width - 2 * _GAP, _CELL - 2 * _GAP)
        style = f"round,pad=0,rounding_size={_GAP}"
        self._axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, facecolor=face, edgecolor="#555555"))
        self.draw_text(x + width / 2, y + _CELL / 2, symbol, centred=True)

    def pixels(self) -> np.ndarray:
        """Return the picture as RGB values: uint8 [height, width, 3]."""
        self.canvas.draw()
        return np.asarray(self.canvas.buffer_rgba())[:, :, :3].copy()


def draw_agent_views(headline: str, agent_views: Iterable[AgentView]) -> np.ndarray:
    """Return `headline` and the pictures of the views, one below the other: uint8 [height, width, 3].

    A view without a picture is shown by its text.
    """
    views = list(merge_equal_views(agent_views))
    width, height = _CHARACTER * len(headline), _LINE
    for view in views:
        rows, lines = view.picture.rows if view.picture else (), _wrapped_text_lines(view)
        columns = max(map(len, rows), default=0)
        width = max(width, columns * _cell_width_px(view), *(_CHARACTER * len(line) for line in lines))
        height += _LINE * (len(lines) + 1) + _CELL * len(rows)
    canvas, y = _Canvas(width + 2 * _MARGIN, height + 2 * _MARGIN), _MARGIN
    canvas.draw_text(_MARGIN, y + _LINE / 2, headline)
    y += _LINE
    for view in views:
        title, *caption = _wrapped_text_lines(view)
        canvas.draw_text(_MARGIN, y + _LINE, title)
        y += 2 * _LINE
        if view.picture:
            draw = canvas.draw_cell if view.picture.kind == "grid" else canvas.draw_card
            cell_width = _cell_width_px(view)
            for row in view.picture.rows:
                for column, symbol in enumerate(row):
                    draw(_MARGIN + column * cell_width, y, cell_width, symbol)
                y += _CELL
        for line in caption:
            canvas.draw_text(_MARGIN, y + _LINE / 2, line)
            y += _LINE
    return canvas.pixels()


def _cell_width_px(agent_view: AgentView) -> int:
    """Return the width of every cell of a view's picture [pixels]: that of the longest symbol and a margin."""
    lengths = [len(symbol) for row in agent_view.picture.rows for symbol in row] if agent_view.picture else []
    return max(_CELL, _CHARACTER * (max(lengths, default=0) + 1) + 2 * _GAP)


def _wrapped_text_lines(agent_view: AgentView) -> list[str]:
    """Return the line of a view's agents, and the lines of its picture's caption or, without a picture, of its text."""
    text = agent_view.picture.caption if agent_view.picture else agent_view.state
    lines = [f"{agent_view.agents}:"]
    for line in text.splitlines():
        lines += textwrap.wrap(line, _MAX_LINE_LENGTH) or [""]
    return lines
