"""Picture of an episode's graph (`marl show --graph`): one row per agent, one column per turn, arrows coloured by
kind."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from marl.core.config import shorten
from marl.core.errors import RaiseRunFolderErrorOnFailedWrite
from marl.core.graph import Trajectory
from marl.core.types import EdgeKind, TurnId
from marl.host.untrusted_text import escape_for_terminal
from marl.scenario.load import ScenarioError
from marl.view.colours import EDGE_COLOURS, NEGATIVE_COLOUR, POSITIVE_COLOUR
from marl.view.curves import PICTURE_SUFFIXES
from marl.view.edge_text import EDGE_KINDS
from marl.view.number_format import format_metric_value
from marl.view.verifier_scores import verifier_scores_in_turn

_BENDS = {kind: 0.12 + 0.06 * index for index, kind in enumerate(EDGE_KINDS)}
"""Curvature of each kind's arrows, so that parallel arrows between two turns stay visible."""
_FULL_BEND_COLUMNS = 2
"""Maximum distance of two turns with the full curvature; arrows over more turns would leave the picture."""
_TEXT = 14
"""Length limit of a displayed move [characters]."""


def check_picture_suffix(file: Path) -> None:
    """Check that matplotlib can draw the file's format.

    Raises:
        ScenarioError: if the suffix is not supported.
    """
    if file.suffix not in PICTURE_SUFFIXES:
        raise ScenarioError(f"--graph {file}: no such format {file.suffix!r}; choices: {', '.join(PICTURE_SUFFIXES)}")


def draw_graph(
    trajectory: Trajectory,
    file: Path,
    advantage_by_turn: Mapping[TurnId, float] | None = None,
    colour_by_role: Mapping[str, str] | None = None,
) -> None:
    """Draw the graph of an episode as on the page, and write the picture to `file`.

    An arrow runs from a source turn to its reader. A dashed arrow marks `gated`: the source only decided about speaking
    or hearing. In an SVG each arrow has the id `SOURCE-READER-KIND`, with the turns' numbers.

    Args:
        trajectory: the episode.
        file: file of the picture.
        advantage_by_turn: id of a credited turn -> its advantage, shown in its box (None: no credit was recorded).
        colour_by_role: role -> colour of its agents' names (None: black).

    Raises:
        RunFolderError: if the file cannot be written.
    """
    rows: dict[str, float] = {}
    colours: list[str] = []
    positions: dict[TurnId, tuple[float, float]] = {}
    for index, turn in enumerate(trajectory.turns):
        if turn.agent not in rows:
            colours.append((colour_by_role or {}).get(turn.role, "black"))
        positions[turn.id] = float(index), rows.setdefault(turn.agent, -float(len(rows)))
    figure = Figure(figsize=(2 + 1.25 * len(trajectory.turns), 1.5 + 0.9 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    drawn_kinds = _draw_arrows(axes, trajectory, positions)
    _draw_turns(axes, trajectory, positions, advantage_by_turn)
    axes.set_yticks([*rows.values()], [_escape_dollars(escape_for_terminal(agent)) for agent in rows])
    for label, colour in zip(axes.get_yticklabels(), colours, strict=True):
        label.set(color=colour, fontweight="bold")
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
        figure.savefig(file, dpi=130)


def _draw_arrows(axes: Axes, trajectory: Trajectory, positions: Mapping[TurnId, tuple[float, float]]) -> set[EdgeKind]:
    """Draw an arrow for each kind of each edge; return the kinds."""
    drawn_kinds: set[EdgeKind] = set()
    for turn in trajectory.turns:
        for source in trajectory.sources(turn.id, EDGE_KINDS):
            kinds = trajectory.edge_kinds(source, turn.id)
            flatness = min(1.0, _FULL_BEND_COLUMNS / (positions[turn.id][0] - positions[source][0]))
            for kind in filter(kinds.__contains__, EDGE_KINDS):
                arrow = FancyArrowPatch(
                    *(positions[source], positions[turn.id]),
                    connectionstyle=f"arc3,rad={-_BENDS[kind] * flatness}",
                    arrowstyle="-|>",
                    mutation_scale=10,
                    shrinkA=14,
                    shrinkB=18,
                    color=EDGE_COLOURS[kind],
                    linestyle=_edge_line_style(kind),
                )
                arrow.set_gid(f"{source[1]}-{turn.id[1]}-{kind}")
                axes.add_patch(arrow)
                drawn_kinds.add(kind)
    return drawn_kinds


def _draw_turns(
    axes: Axes,
    trajectory: Trajectory,
    positions: Mapping[TurnId, tuple[float, float]],
    advantage_by_turn: Mapping[TurnId, float] | None,
) -> None:
    """Draw a box for each turn: its move, or a verifier's scores, and its advantage, which also colours the box."""
    advantages = advantage_by_turn or {}
    finite = [abs(advantages[turn.id]) for turn in trajectory.turns if isfinite(advantages.get(turn.id, nan))]
    maximum = max(finite, default=0.0) or 1.0
    for turn in trajectory.turns:
        scores = [f"{score.name} {format_metric_value(score.value)}" for score in verifier_scores_in_turn(turn)]
        move = ", ".join(scores) or ("?" if turn.action is None else turn.action)
        text = f"{turn.id[1]}: {shorten(escape_for_terminal(move), _TEXT)}"
        fill = "white"
        if turn.id in advantages:
            advantage = advantages[turn.id]
            text += f"\n{'+' if advantage > 0 else ''}{format_metric_value(advantage)}"
            fill = to_hex(_mixed_with_white(advantage, maximum)) if isfinite(advantage) else fill
        elif advantage_by_turn is not None:
            text += "\nno credit"
        box = {"boxstyle": "round", "facecolor": fill, "edgecolor": "#555555"}
        axes.text(*positions[turn.id], _escape_dollars(text), ha="center", va="center", bbox=box, fontsize=8)


def _mixed_with_white(advantage: float, maximum: float) -> tuple[float, float, float]:
    """Return the colour (red, green, blue) of an advantage on white, as on the page."""
    strength = 0.45 * abs(advantage) / maximum
    red, green, blue = to_rgb(NEGATIVE_COLOUR if advantage < 0 else POSITIVE_COLOUR)
    return 1 - strength * (1 - red), 1 - strength * (1 - green), 1 - strength * (1 - blue)


def _edge_line_style(kind: EdgeKind) -> Literal["--", "-"]:
    """Return the line style of an edge: dashed for `gated`, solid for all other kinds."""
    return "--" if kind == "gated" else "-"


def _escape_dollars(text: str) -> str:
    """Return `text` with every `$` escaped for matplotlib."""
    # Matplotlib would parse text between two `$` as a formula.
    return text.replace("$", r"\$")
