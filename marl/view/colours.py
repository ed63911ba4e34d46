"""Colours of runs, roles and edges: the same on the page, in plots and in pictures of graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marl.core.errors import RunFolderError
from marl.core.types import EdgeKind
from marl.runs.run_folder import RunFolder

LINE_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a6f00", "#888888")
"""Palette of Okabe and Ito, distinguishable with most colour vision deficiencies."""
EDGE_COLOURS: Mapping[EdgeKind, str] = {
    "heard": "#2a8fd0",
    "told": "#1aa57d",
    "posed": "#e0691a",
    "gated": "#8a8f98",
    "tool": "#cc79a7",
    "self": "#a08c00",
}
"""Kind of an edge -> its colour, as in `KINDS` of `page/static/words.js`."""
POSITIVE_COLOUR, NEGATIVE_COLOUR = "#0072b2", "#e67800"
"""Colours of positive and negative advantages, as in `page/static/graph.js`."""
DASHES: Sequence[Sequence[int]] = ((), (6, 4), (2, 3), (8, 3, 2, 3))
"""Dash patterns of lines that share a colour: lengths of dashes and gaps [pixels]."""


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Look of one line in all panels, and the runs that it is drawn from."""

    colour: str
    dash: Sequence[int]
    """Dash pattern, one of `DASHES`."""
    runs: Sequence[str]
    """Names of the line's runs: several for a mean over seeds."""


def colours_by_name(names: Iterable[str]) -> dict[str, str]:
    """Return name -> colour, in the order of the names."""
    return {name: LINE_COLOURS[index % len(LINE_COLOURS)] for index, name in enumerate(names)}


def role_colours(runs: Iterable[Path]) -> dict[str, str]:
    """Return role -> colour, for the roles in each run's first row with metrics of roles.

    Such rows never change, so that a role keeps its colour while the runs go on and whatever metrics are drawn. The
    first row of all may be that of an evaluation before training, which has no roles.
    """
    roles: set[str] = set()
    for run in runs:
        with suppress(RunFolderError):  # a run that cannot be read adds no roles
            for row in RunFolder(run).rows():
                if found := {name.split("/")[1] for name in row if name.startswith("role/")}:
                    roles |= found
                    break
    return colours_by_name(sorted(roles))


def line_style_by_name(line_names: Iterable[str], run_path_by_name: Mapping[str, Path]) -> dict[str, LineStyle]:
    """Return line -> style. A line is named RUN, several runs separated by commas, ROLE, or RUN: ROLE.

    A line of a role has the colour of the role, and any other line that of its first run.

    Args:
        line_names: names of lines.
        run_path_by_name: name -> folder of all runs, in the order in which the user named them.
    """
    roles, run_colours, order = (
        role_colours(run_path_by_name.values()),
        colours_by_name(run_path_by_name),
        list(run_path_by_name),
    )
    styles: dict[str, LineStyle] = {}
    for line in dict.fromkeys(line_names):
        head, _, role = line.rpartition(": ")
        if line in roles and line not in run_path_by_name:
            styles[line] = LineStyle(roles[line], DASHES[0], order)
            continue
        role = role if head and role in roles else ""
        members = (head if role else line).split(", ")
        members = [name for name in members if name in run_path_by_name] or order[:1]
        first = order.index(members[0])
        dash = DASHES[(first if role else first // len(LINE_COLOURS)) % len(DASHES)]
        styles[line] = LineStyle(roles[role] if role else run_colours[members[0]], dash, members)
    return styles
