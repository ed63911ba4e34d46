"""Views of the agents on a game's state, and their rendering as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from marl.protocols import StateRendering


class AgentView(NamedTuple):
    """Information state that some agents share."""

    agents: str
    """Names of the agents, separated by commas."""
    state: str
    """Information state as text."""
    picture: StateRendering | None
    """Picture of the information state, or None if the game has no picture of it."""


def merge_equal_views(views: Iterable[AgentView]) -> Iterator[AgentView]:
    """Yield one view per distinct picture (or, without a picture, per distinct text), with the names of all its agents.

    Players of a game of perfect information share one view.
    """
    groups: dict[StateRendering | str, AgentView] = {}
    for view in views:
        key = view.picture or view.state
        first = groups.get(key)
        groups[key] = first._replace(agents=f"{first.agents}, {view.agents}") if first else view
    yield from groups.values()


def render_as_text(headline: str, views: Iterable[AgentView]) -> str:
    """Return `headline`, then the names of the agents of each view and its picture, or its text if there is none."""
    blocks = [headline]
    for view in merge_equal_views(views):
        blocks.append(f"{view.agents}:\n{_picture_as_text(view.picture) if view.picture else view.state}")
    return "\n\n".join(blocks)


def _picture_as_text(picture: StateRendering) -> str:
    """Return the rows of a picture as lines, with columns of equal width, and its caption."""
    is_grid = picture.kind == "grid"
    cells: list[list[str]] = []
    for row in picture.rows:
        cells.append([symbol or "." if is_grid else f"[{symbol or ' '}]" for symbol in row])
    columns = max(map(len, cells), default=0)
    widths = [max(len(row[column]) for row in cells if column < len(row)) for column in range(columns)]
    lines = [" ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join(filter(None, [*lines, picture.caption]))
