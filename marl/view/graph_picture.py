"""Picture of an episode's graph (`marl show --graph`): one row per agent, one column per turn, arrows coloured by
kind."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from marl.core.config import shorten
from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, TurnId
from marl.host.untrusted_text import escape_for_terminal
from marl.scenario.load import ScenarioError
from marl.view.colours import EDGE_COLOURS
from marl.view.curves import PICTURE_SUFFIXES
from marl.view.edge_text import EDGE_KINDS

_BENDS = {kind: 0.12 + 0.06 * index for index, kind in enumerate(EDGE_KINDS)}
"""Curvature of each kind's arrows, so that parallel arrows between two turns stay visible."""
_TEXT = 14
"""Length limit of a displayed move [characters]."""
_BOX = {"boxstyle": "round", "facecolor": "white", "edgecolor": "#555555"}
"""Style of the box around a turn."""


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
        RunFolderError: if the file cannot be written.
    """
    rows: dict[str, float] = {}
    positions: dict[TurnId, tuple[float, float]] = {}
    for index, turn in enumerate(trajectory.turns):
        row = rows.setdefault(turn.agent, -float(len(rows)))
        positions[turn.id] = float(index), row
    figure = Figure(figsize=(2 + 1.1 * len(trajectory.turns), 1.5 + 0.9 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    drawn_kinds: set[EdgeKind] = set()
    for turn in trajectory.turns:
        for source in trajectory.sources(turn.id, EDGE_KINDS):
            kinds = trajectory.edge_kinds(source, turn.id)
            for kind in filter(kinds.__contains__, EDGE_KINDS):
                arrow = FancyArrowPatch(
                    *(positions[source], positions[turn.id]),
                    connectionstyle=f"arc3,rad={-_BENDS[kind]}",
                    arrowstyle="-|>",
                    mutation_scale=10,
                    shrinkA=14,
                    shrinkB=16,
                    color=EDGE_COLOURS[kind],
                    linestyle=_edge_line_style(kind),
                )
                arrow.set_gid(f"{source[1]}-{turn.id[1]}-{kind}")
                axes.add_patch(arrow)
                drawn_kinds.add(kind)
    for turn in trajectory.turns:
        move = "?" if turn.action is None else shorten(escape_for_terminal(turn.action), _TEXT)
        text = _escape_dollars(f"{turn.id[1]}: {move}")
        axes.text(*positions[turn.id], text, ha="center", va="center", bbox=_BOX, fontsize=8)
    axes.set_yticks([*rows.values()], [_escape_dollars(escape_for_terminal(agent)) for agent in rows])
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(trajectory.turns) - 0.4)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_title(_escape_dollars(escape_for_terminal(trajectory.id)), fontsize=9)
    lines: list[Line2D] = []
    for kind in EDGE_KINDS:
        if kind in drawn_kinds:
            lines.append(Line2D([], [], color=EDGE_COLOURS[kind], linestyle=_edge_line_style(kind), label=kind))
    if lines:
        figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)
    with RaiseRunFolderErrorOnFailedWrite(file):
        figure.savefig(file)


def _edge_line_style(kind: EdgeKind) -> Literal["--", "-"]:
    """Return the line style of an edge: dashed for `gated`, solid for all other kinds."""
    return "--" if kind == "gated" else "-"


def _escape_dollars(text: str) -> str:
    """Return `text` with every `$` escaped for matplotlib."""
    # Matplotlib would parse text between two `$` as a formula.
    return text.replace("$", r"\$")
