"""Communication game: round by round, a team decides who hears whom (actions of Agent Q-Mix, arXiv 2604.00344)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
from pydantic import Field, NonNegativeFloat, PositiveInt

from games.base import TextGame, TextGameConfig
from games.tasks.base import TaskGameConfig, deal_problem
from marl.types import Findings

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


class CommunicationConfig(TaskGameConfig, TextGameConfig):
    """A problem, n agents and a graph of their own making. An unreadable answer costs its agent 1 and ends the game.

    The task's answers must be exact texts: answers are only compared.
    """

    kind: str = "communication"
    example = "task: {kind: arithmetic, digits: [1, 2]}, agents: 3"
    agents: int = Field(default=3, ge=2, le=1000)
    """Number of agents."""
    rounds: PositiveInt = 2
    """In each round all agents choose whom to hear and then answer; the answers of the last one count."""
    accuracy: NonNegativeFloat = 1.0
    """Reward of every agent for the right answer."""
    cost: NonNegativeFloat = 0.1
    """Cost of talk for every agent: proportional, and the whole once the budget is spent."""
    budget: PositiveInt = 200
    """Words spoken and heard by all agents, a choice being one: a game sees moves, not tokens."""

    def build(self) -> Communication:
        return Communication(self)

    def default_seats(self) -> Mapping[str, str]:
        return {f"agent_{place}": "speaker" for place in range(self.agents)}


class Communication(TextGame):
    """Each round all agents choose at once; then they answer in topological order, those at one depth at once.

    An agent hears its predecessors in the round's graph: their new answer, and their earlier moves that it has not
    heard before. The team's answer is the majority's (of equally frequent ones, that of the first agent). All are paid
    alike: `accuracy` * correct - `cost` * min(words / `budget`, 1).
    """

    name = "communication"
    choices = ("split", "index", "problem")

    def __init__(self, config: CommunicationConfig) -> None:
        super().__init__(tuple(config.default_seats()), config.illegal)
        self.config, self.tasks = config, config.tasks
        self.rules = (
            f"A team of {config.agents} solves a problem in {config.rounds} rounds. In each round all first choose at "
            "once how they talk: [alone] to nobody, [broadcast] all hear you, [query] you hear the next player, "
            "[aggregate] you hear all, [verify] the next player hears you, [debate] you and the player opposite hear "
            "each other. Then each gives an answer to the problem. The majority's answer in the last round counts, "
            "and talk costs a little."
        )

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.dealt_problem = deal_problem(self.name, self.tasks, rng, options)
        if not self.dealt_problem.answer.strip():
            raise ValueError(
                f"communication: problem {self.dealt_problem.key!r} has no answer that texts can be compared with"
            )
        self.moves: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Agent -> its choices and answers in turn."""
        self.graphs: list[nx.DiGraph[str]] = []
        self._heard_counts: dict[Edge, int] = {}
        """(speaker, listener) -> number of the speaker's moves that the listener has heard, or is about to hear."""
        self._choosing, self._stage, self._later_stages, self._correct = True, self.seats, [], False
        return self.seats[0]

    def start_key(self) -> str:
        return self.dealt_problem.key

    def problem(self) -> str:
        return self.dealt_problem.key

    def examples(self, agent: str) -> tuple[str, ...]:
        return () if self._choosing else (self.dealt_problem.answer, *self.dealt_problem.wrong)

    def legal(self) -> tuple[str, ...] | None:
        return ACTIONS if self._choosing else None

    def together(self, agent: str) -> tuple[str, ...]:
        return self._stage

    def hears(self, agent: str) -> tuple[str, ...]:
        graph = None if self._choosing else self.graphs[-1]
        return tuple(each for each in self.seats if each == agent or (graph and graph.has_edge(each, agent)))

    def describe(self, agent: str) -> str:
        rounds_done = len(self.graphs) - (not self._choosing)
        last_answer = [f"you said {self.moves[agent][2 * rounds_done - 1]}"] if rounds_done else []
        request = ["choose", *(f"[{action}]" for action in ACTIONS)] if self._choosing else ["answer"]
        header = f"{agent} . round {rounds_done + 1} of {self.config.rounds}"
        return " . ".join([self.dealt_problem.question, header, *last_answer, " ".join(request)])

    def state_of(self, agent: str) -> str:
        known = {agent: self.moves[agent]} | self._heard_moves(agent)
        moves = (f"{speaker} : {' , '.join(moves)}" for speaker, moves in known.items())
        return " . ".join([self.dealt_problem.question, *moves])

    def move(self, action: str) -> str | Mapping[str, float]:
        self.moves[self.agent_selection].append(_normalize_spaces(action))
        self._stage = self._stage[1:] or self._next_stage()
        return self._stage[0] if self._stage else self._pay_team()

    def findings(self) -> Findings:
        """Return `success`, the `edges` of all rounds, and `density`, their share of the most an acyclic graph has."""
        edges, most = sum(graph.number_of_edges() for graph in self.graphs), len(self.seats) * (len(self.seats) - 1) / 2
        density = edges / most / max(len(self.graphs), 1)
        return Findings({"success": float(self._correct), "edges": float(edges), "density": density})

    def words_spent(self) -> int:
        """Return the number of words spoken and heard so far, by all agents."""
        heard = (moves for agent in self.seats for moves in self._heard_moves(agent).values())
        return sum(len(move.split()) for moves in (*self.moves.values(), *heard) for move in moves)

    def _heard_moves(self, listener: str) -> dict[str, list[str]]:
        """Return speaker -> the moves that `listener` has heard of it."""
        counts = {speaker: self._heard_counts.get((speaker, listener), 0) for speaker in self.seats}
        return {speaker: self.moves[speaker][:count] for speaker, count in counts.items() if count}

    def _next_stage(self) -> tuple[str, ...]:
        """Return the agents to be asked next, all at once; none at the end."""
        if self._choosing:
            self._choosing = False
            self._add_graph({agent: moves[-1] for agent, moves in self.moves.items()})
        if self._later_stages:
            return self._later_stages.pop(0)
        self._choosing = len(self.graphs) < self.config.rounds
        return self.seats if self._choosing else ()

    def _add_graph(self, choices: Mapping[str, str]) -> None:
        graph = connect(choices)
        self.graphs.append(graph)
        self._heard_counts |= dict.fromkeys(graph.edges, 2 * len(self.graphs))
        self._later_stages = [tuple(sorted(depth, key=self.seats.index)) for depth in nx.topological_generations(graph)]

    def _pay_team(self) -> Mapping[str, float]:
        answers = Counter(moves[-1] for moves in self.moves.values())
        # Of equally frequent ones, most_common names first what was counted first.
        self._correct = answers.most_common(1)[0][0] == _normalize_spaces(self.dealt_problem.answer)
        cost = -self.config.cost * min(self.words_spent() / self.config.budget, 1.0)
        accuracy = self.config.accuracy * self._correct
        self.pay(dict.fromkeys(self.seats, accuracy), "accuracy", "most common answer against the right one")
        self.pay(
            dict.fromkeys(self.seats, cost), "cost", f"{self.words_spent()} words of a budget of {self.config.budget}"
        )
        return {}


def _normalize_spaces(text: str) -> str:
    return " ".join(text.split())
