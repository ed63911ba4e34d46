"""Layout of an episode's graph: one column per agent, one row per generation."""

from __future__ import annotations

import networkx as nx

from marl.core.graph import Trajectory
from marl.core.types import TurnId


def turn_columns_and_rows(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return (column, row) of each turn, from 0, in order of play.

    Columns follow the agents' first turns. A turn lies below all its sources and below its agent's earlier turns, so
    turns of one row could have been played simultaneously.
    """
    # The copy leaves out the edges' kinds, which do not influence the layout.
    order = nx.DiGraph(trajectory.graph.edges)
    columns: dict[str, int] = {}
    newest_turns: dict[str, TurnId] = {}
    for turn in trajectory.turns:
        columns.setdefault(turn.agent, len(columns))
        order.add_node(turn.id)
        if turn.agent in newest_turns:
            order.add_edge(newest_turns[turn.agent], turn.id)
        newest_turns[turn.agent] = turn.id
    rows: dict[TurnId, int] = {}
    for row, turns in enumerate(nx.topological_generations(order)):
        rows |= dict.fromkeys(turns, row)
    return [(columns[turn.agent], rows[turn.id]) for turn in trajectory.turns]
