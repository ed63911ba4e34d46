"""Communication graphs built from the actions of Agent Q-Mix (arXiv 2604.00344), and the order of speech in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import networkx as nx

COMMUNICATION_ACTIONS = ("alone", "broadcast", "query", "aggregate", "verify", "debate")
Edge = tuple[str, str]
"""(speaker, listener)"""


def requested_edges(agent: str, action: str, ring: Sequence[str]) -> list[Edge]:
    """Return the edges requested by an action, in order of preference.

    The next agent follows in the ring; the opposite agent is `len(ring) // 2` positions further.

    - `alone`: no edge
    - `broadcast`: all agents hear `agent`
    - `query`: `agent` hears the next agent
    - `aggregate`: `agent` hears all agents
    - `verify`: the next agent hears `agent`, to check the answer
    - `debate`: `agent` and the opposite agent hear each other; an acyclic graph keeps one of these two edges
    """
    # This follows the paper. In its released code, `query` also makes the next agent hear `agent`, and `verify` of the
    # last agent adds no edge.
    index = ring.index(agent)
    after = (*ring[index + 1 :], *ring[:index])
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

    Requested edges are added one by one, in agent order; an edge that would close a cycle is left out.
    """
    ring = tuple(choices)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(ring)
    for agent, action in choices.items():
        for speaker, listener in requested_edges(agent, action, ring):
            if not nx.has_path(graph, listener, speaker):
                graph.add_edge(speaker, listener)
    return graph


def edge_requesters(choices: Mapping[str, str], graph: nx.DiGraph[str]) -> dict[str, set[str]]:
    """Return agent -> agents whose choices requested an edge at this agent.

    Their choices decided whether the agent speaks and whom it hears. The set is empty for an agent without an edge.
    """
    ring, requesters = tuple(choices), {agent: set[str]() for agent in choices}
    for agent, action in choices.items():
        for speaker, listener in requested_edges(agent, action, ring):
            if graph.has_edge(speaker, listener):
                requesters[speaker].add(agent)
                requesters[listener].add(agent)
    return requesters


def speaking_order(graph: nx.DiGraph[str], answering: Collection[str]) -> list[tuple[str, ...]]:
    """Return the groups of agents speaking at once, in topological order; each group is in ring order.

    An agent without an edge is silent unless `answering`, the agents whose answers count, contains the agent.
    """
    ring = list(graph)
    groups: list[tuple[str, ...]] = []
    for depth in nx.topological_generations(graph):
        if group := [agent for agent in depth if graph.degree[agent] or agent in answering]:
            groups.append(tuple(sorted(group, key=ring.index)))
    return groups
