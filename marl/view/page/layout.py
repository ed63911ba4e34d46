"""Places of an episode's turns in a drawing of its graph: a column an agent, a row a generation."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx

from marl.graph import Trajectory


def layout(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Return (column, row) of each turn, from 0, in the order of play.

    Agents have columns in the order in which they first speak. A turn stands below all that led to it and below its
    agent's earlier turns, so that turns of one row could have been taken at once.
    """
    columns = {agent: place for place, agent in enumerate(dict.fromkeys(turn.agent for turn in trajectory.turns))}
    order = nx.DiGraph(trajectory.graph.edges)
    order.add_nodes_from(turn.id for turn in trajectory.turns)
    for agent in columns:
        order.add_edges_from(pairwise(turn.id for turn in trajectory.turns if turn.agent == agent))
    rows = {turn: row for row, turns in enumerate(nx.topological_generations(order)) for turn in turns}
    return [(columns[turn.agent], rows[turn.id]) for turn in trajectory.turns]
