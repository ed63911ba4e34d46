"""Layout of an episode's graph: one column per agent, one row per generation."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx

from marl.core.graph import Trajectory


def graph_layout(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return (column, row) of each turn, from 0, in order of play.

    Columns follow the agents' first turns. A turn lies below all its sources and below its agent's earlier turns, so
    turns of one row could have been played simultaneously.
    """
    columns = {agent: column for column, agent in enumerate(dict.fromkeys(turn.agent for turn in trajectory.turns))}
    # The layout depends on the order of turns alone; the kinds of edges are dropped.
    order = nx.DiGraph(trajectory.graph.edges)
    order.add_nodes_from(turn.id for turn in trajectory.turns)
    for agent in columns:
        order.add_edges_from(pairwise(turn.id for turn in trajectory.turns if turn.agent == agent))
    rows = {turn: row for row, turns in enumerate(nx.topological_generations(order)) for turn in turns}
    return [(columns[turn.agent], rows[turn.id]) for turn in trajectory.turns]
