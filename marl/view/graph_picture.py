"""Picture of an episode's graph (`marl show --graph`): one row per agent, one column per turn, arrows coloured by
kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from marl.core.config import shorten
from marl.core.errors import Writing
from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, TurnId
from marl.host.outside import escape_for_terminal
from marl.scenario.load import ScenarioError
from marl.view.curves import PICTURE_SUFFIXES
from marl.view.edge_text import EDGE_KINDS

_COLOURS = dict(zip(EDGE_KINDS, ("#0072b2", "#009e73", "#d55e00", "#999999", "#cc79a7", "#222222"), strict=True))
"""Palette of Okabe and Ito, distinguishable with most colour vision deficiencies."""
_BENDS = {kind: 0.12 + 0.06 * index for index, kind in enumerate(EDGE_KINDS)}
"""Curvature of each kind's arrows, so that parallel arrows between two turns stay visible."""
_TEXT = 14
"""Length limit of a displayed move [characters]."""


def check_picture_suffix(file: Path) -> None:
    """Check that matplotlib can draw the file's format.

    Raises:
        ScenarioError: if the suffix is not supported.
    """
    if file.suffix not in PICTURE_SUFFIXES:
        raise ScenarioError(f"--graph {file}: no such format {file.suffix!r}; choices: {', '.join(PICTURE_SUFFIXES)}")


def draw_graph(trajectory: Trajectory, file: Path) -> None:
    """Draw the graph of an episode and write the picture to `file`.

    An arrow runs from a source turn to its reader. A dashed arrow marks `gated`: the source only decided about speaking
    or hearing. In an SVG each arrow has the id `SOURCE-READER-KIND`, with the turns' numbers.

    Raises:
        FolderError: if the file cannot be written.
    """
    rows = {agent: -index for index, agent in enumerate(dict.fromkeys(turn.agent for turn in trajectory.turns))}
    figure = Figure(figsize=(2 + 1.1 * len(trajectory.turns), 1.5 + 0.9 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    positions = {turn.id: (float(index), float(rows[turn.agent])) for index, turn in enumerate(trajectory.turns)}
    drawn_kinds = {kind for turn in trajectory.turns for kind in _arrows(axes, trajectory, turn.id, positions)}
    for turn in trajectory.turns:
        move = "?" if turn.action is None else shorten(escape_for_terminal(turn.action), _TEXT)
        axes.text(*positions[turn.id], _plain(f"{turn.id[1]}: {move}"), ha="center", va="center", bbox=_BOX, fontsize=8)
    axes.set_yticks([*rows.values()], [_plain(escape_for_terminal(agent)) for agent in rows])
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(trajectory.turns) - 0.4)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_title(_plain(escape_for_terminal(trajectory.id)), fontsize=9)
    legend_kinds: list[EdgeKind] = [kind for kind in EDGE_KINDS if kind in drawn_kinds]
    lines = [Line2D([], [], color=_COLOURS[kind], linestyle=_style(kind), label=kind) for kind in legend_kinds]
    if lines:
        figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)
    with Writing(file):
        figure.savefig(file)


_Place = tuple[float, float]
_BOX = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#555555"}


def _arrows(axes: Axes, trajectory: Trajectory, reader: TurnId, positions: Mapping[TurnId, _Place]) -> list[EdgeKind]:
    """Draw the arrows into turn `reader`; return their kinds."""
    sources = {source: trajectory.edge_kinds(source, reader) for source in trajectory.sources(reader, EDGE_KINDS)}
    edges: list[tuple[TurnId, EdgeKind]] = [
        (source, kind) for source, kinds in sources.items() for kind in EDGE_KINDS if kind in kinds
    ]
    for source, kind in edges:
        arrow = FancyArrowPatch(
            *(positions[source], positions[reader]),
            connectionstyle=f"arc3,rad={-_BENDS[kind]}",
            arrowstyle="-|>",
            mutation_scale=10,
            shrinkA=14,
            shrinkB=16,
            color=_COLOURS[kind],
            linestyle=_style(kind),
        )
        arrow.set_gid(f"{source[1]}-{reader[1]}-{kind}")
        axes.add_patch(arrow)
    return [kind for _, kind in edges]


def _style(kind: EdgeKind) -> Literal["--", "-"]:
    return "--" if kind == "gated" else "-"


def _plain(text: str) -> str:
    # Matplotlib would parse text between two `$` as a formula.
    return text.replace("$", r"\$")
