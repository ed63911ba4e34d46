"""An episode's graph as a picture (`marl show --graph`): a row an agent, a column a turn, arrows by kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from marl.config import cut
from marl.errors import Writing
from marl.graph import Trajectory
from marl.scenario.load import ScenarioError
from marl.text import for_terminal
from marl.types import EdgeKind, TurnId
from marl.view.curves import PICTURES
from marl.view.edges import KINDS

_COLOURS = dict(zip(KINDS, ("#0072b2", "#009e73", "#d55e00", "#999999", "#cc79a7", "#222222"), strict=True))
"""Colours of Okabe and Ito, which most people with colour blindness can tell apart."""
_BENDS = {kind: 0.12 + 0.06 * place for place, kind in enumerate(KINDS)}
"""Curvature of the arrows of a kind, so that several between the same turns do not hide one another."""
_TEXT = 14
"""Most characters of a move that are shown."""


def check_picture(file: Path) -> None:
    """Check that pictures can be drawn in the format that a file's name ends with.

    Raises:
        ScenarioError: if not.
    """
    if file.suffix not in PICTURES:
        raise ScenarioError(f"--graph {file}: no such format {file.suffix!r}; choices: {', '.join(PICTURES)}")


def draw_graph(trajectory: Trajectory, file: Path) -> None:
    """Draw who led to whom in an episode, and write the picture.

    An arrow goes from a turn to one that it led to; a dashed one says that it only decided that the other spoke or was
    heard. In an SVG each has the id `SOURCE-READER-KIND`, with the numbers of the turns.

    Raises:
        FolderError: if the file cannot be written.
    """
    rows = {agent: -place for place, agent in enumerate(dict.fromkeys(turn.agent for turn in trajectory.turns))}
    figure = Figure(figsize=(2 + 1.1 * len(trajectory.turns), 1.5 + 0.9 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = {turn.id: (float(place), float(rows[turn.agent])) for place, turn in enumerate(trajectory.turns)}
    drawn = {kind for turn in trajectory.turns for kind in _arrows(axes, trajectory, turn.id, places)}
    for turn in trajectory.turns:
        move = "?" if turn.action is None else cut(for_terminal(turn.action), _TEXT)
        axes.text(*places[turn.id], _plain(f"{turn.id[1]}: {move}"), ha="center", va="center", bbox=_BOX, fontsize=8)
    axes.set_yticks([*rows.values()], [_plain(for_terminal(agent)) for agent in rows])
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(trajectory.turns) - 0.4)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_title(_plain(for_terminal(trajectory.id)), fontsize=9)
    shown: list[EdgeKind] = [kind for kind in KINDS if kind in drawn]
    lines = [Line2D([], [], color=_COLOURS[kind], linestyle=_style(kind), label=kind) for kind in shown]
    if lines:
        figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)
    with Writing(file):
        figure.savefig(file)


_Place = tuple[float, float]
_BOX = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#555555"}


def _arrows(axes: Axes, trajectory: Trajectory, reader: TurnId, places: Mapping[TurnId, _Place]) -> list[EdgeKind]:
    """Draw the arrows that lead to a turn; return their kinds."""
    sources = {source: trajectory.kinds(source, reader) for source in trajectory.sources(reader, KINDS)}
    edges: list[tuple[TurnId, EdgeKind]] = [
        (source, kind) for source, kinds in sources.items() for kind in KINDS if kind in kinds
    ]
    for source, kind in edges:
        arrow = FancyArrowPatch(
            *(places[source], places[reader]),
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
    # What a model says may hold the signs between which matplotlib reads formulas.
    return text.replace("$", r"\$")
