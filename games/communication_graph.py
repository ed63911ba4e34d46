"""Communication graphs built from the actions of Agent Q-Mix (arXiv 2604.00344), and the order of speech in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

import networkx as nx

COMMUNICATION_ACTIONS = ("alone", "broadcast", "query", "aggregate", "verify", "debate")
Edge = tuple[str, str]
"""Edge of a communication graph: (speaker, listener)."""


def requested_edges(agent: str, action: str, ring_order: Sequence[str]) -> list[Edge]:
    """Return the edges that `action` of `agent` requests, in order of preference.

    The next agent is the successor of `agent` in `ring_order`; the opposite agent is `len(ring_order) // 2` positions
    further.

    - `alone`: no edge
    - `broadcast`: all agents hear `agent`
    - `query`: `agent` hears the next agent
    - `aggregate`: `agent` hears all agents
    - `verify`: the next agent hears `agent`, to check the answer
    - `debate`: `agent` and the opposite agent hear each other; an acyclic graph keeps one of these two edges
    """
    # The edges are those of the paper. Its code differs: two edges for `query`, and no `verify` edge of the last agent.
    index = ring_order.index(agent)
    after = (*ring_order[index + 1 :], *ring_order[:index])
    following, opposite = after[0], after[len(ring_order) // 2 - 1]
    return {
        "alone": [],
        "broadcast": list(product((agent,), after)),
        "query": [(following, agent)],
        "aggregate": list(product(after, (agent,))),
        "verify": [(agent, following)],
        "debate": [(agent, opposite), (opposite, agent)],
    }[action]


def build_communication_graph(action_by_agent: Mapping[str, str]) -> nx.DiGraph[str]:
    """Return the graph of a joint choice (agent -> action, in ring order); edges run from speaker to listener.

    Requested edges are added one by one, in agent order; an edge that would close a cycle is left out.
    """
    ring = tuple(action_by_agent)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(ring)
    for agent, action in action_by_agent.items():
        for speaker, listener in requested_edges(agent, action, ring):
            if not nx.has_path(graph, listener, speaker):
                graph.add_edge(speaker, listener)
    return graph


def edge_requesters_by_agent(action_by_agent: Mapping[str, str], graph: nx.DiGraph[str]) -> dict[str, set[str]]:
    """Return agent -> agents whose choices requested an edge from or to this agent (empty if it has no edge).

    These choices decided whether the agent speaks and whom it hears.
    """
    ring, requesters = tuple(action_by_agent), {agent: set[str]() for agent in action_by_agent}
    for agent, action in action_by_agent.items():
        for speaker, listener in requested_edges(agent, action, ring):
            if graph.has_edge(speaker, listener):
                requesters[speaker].add(agent)
                requesters[listener].add(agent)
    return requesters


def speaking_order(graph: nx.DiGraph[str], answering_agents: Collection[str]) -> list[tuple[str, ...]]:
    """Return the groups of agents that speak at once, in topological order; each group is in ring order.

    An agent without an edge is silent unless it is in `answering_agents`, the agents whose answers count.
    """
    ring = list(graph)
    groups: list[tuple[str, ...]] = []
    for generation in nx.topological_generations(graph):
        if group := [agent for agent in generation if graph.degree[agent] or agent in answering_agents]:
            groups.append(tuple(sorted(group, key=ring.index)))
    return groups
