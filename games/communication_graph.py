"""From choices to a graph: the communication actions of Agent Q-Mix (arXiv 2604.00344), and who speaks when."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import networkx as nx

ACTIONS = ("alone", "broadcast", "query", "aggregate", "verify", "debate")
Edge = tuple[str, str]
"""(speaker, listener)"""


def requested_edges(agent: str, action: str, ring: Sequence[str]) -> list[Edge]:
    """Return the edges that an action asks for, in order of preference.

    The next agent is the one that follows in the ring, the opposite agent the one `len(ring) // 2` places on:

    - `alone`: none
    - `broadcast`: everybody hears me
    - `query`: I hear the next
    - `aggregate`: I hear everybody
    - `verify`: the next hears me, to check my answer
    - `debate`: the opposite and I hear each other; an acyclic graph keeps one of the two edges

    In the released code `query`, too, makes the next hear me, and the last agent's `verify` adds nothing.
    """
    place = ring.index(agent)
    after = (*ring[place + 1 :], *ring[:place])
    following, opposite = after[0], after[len(ring) // 2 - 1]
    return {
        "alone": [],
        "broadcast": [(agent, other) for other in after],
        "query": [(following, agent)],
        "aggregate": [(other, agent) for other in after],
        "verify": [(agent, following)],
        "debate": [(agent, opposite), (opposite, agent)],
    }[action]


def connect(choices: Mapping[str, str]) -> nx.DiGraph[str]:
    """Return the graph of a joint choice (agent -> action, in ring order); edges run from speaker to listener.

    Requested edges are added one by one, in agent order; one that would close a cycle is left out.
    """
    ring = tuple(choices)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(ring)
    for agent, action in choices.items():
        for speaker, listener in requested_edges(agent, action, ring):
            if not nx.has_path(graph, listener, speaker):
                graph.add_edge(speaker, listener)
    return graph


def deciders(choices: Mapping[str, str], graph: nx.DiGraph[str]) -> dict[str, set[str]]:
    """Return agent -> those whose choices asked for an edge of the graph on which it is.

    They decided that it speaks, or whom it hears. Nobody did so for an agent on no edge.
    """
    ring, asking = tuple(choices), {agent: set[str]() for agent in choices}
    for agent, action in choices.items():
        for edge in requested_edges(agent, action, ring):
            for each in edge if graph.has_edge(*edge) else ():
                asking[each].add(agent)
    return asking


def speaking_order(graph: nx.DiGraph[str], answering: Collection[str]) -> list[tuple[str, ...]]:
    """Return who speaks at once, depth by depth: an agent on no edge is silent unless its answer counts."""
    depths = [[a for a in depth if graph.degree[a] or a in answering] for depth in nx.topological_generations(graph)]
    ring = list(graph)
    return [tuple(sorted(depth, key=ring.index)) for depth in depths if depth]
