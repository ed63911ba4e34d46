"""A team that decides, round by round, who hears whom (the actions of Agent Q-Mix, arXiv 2604.00344)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, get_args

import networkx as nx
from pydantic import Field, NonNegativeFloat, PositiveInt, TypeAdapter

from games.base import TextGame, TextGameConfig
from games.tasks.starts import held_out_starts, samples
from marl.config import nearest
from marl.parts import Part
from marl.protocols import Split, TaskConfig, Tasks
from marl.types import Findings, Problem

ACTIONS = ("alone", "broadcast", "query", "aggregate", "verify", "debate")
Edge = tuple[str, str]
"""(speaker, listener)"""


def wishes(agent: str, action: str, ring: Sequence[str]) -> list[Edge]:
    """The edges that an action asks for, in order of preference.

    `next` is the agent that follows in the ring, `opposite` the one that is `len(ring) // 2` places on:

    - `alone`: none
    - `broadcast`: everybody hears me
    - `query`: I hear the next
    - `aggregate`: I hear everybody
    - `verify`: the next hears me, to check what I say
    - `debate`: the opposite and I hear each other; of the two edges a graph without cycles keeps one

    In the released code `query`, too, makes the next hear me, and the last agent's `verify` adds nothing.
    """
    place = ring.index(agent)
    others = (*ring[place + 1 :], *ring[:place])
    following, opposite = others[0], others[len(ring) // 2 - 1]
    return {
        "alone": [],
        "broadcast": [(agent, other) for other in others],
        "query": [(following, agent)],
        "aggregate": [(other, agent) for other in others],
        "verify": [(agent, following)],
        "debate": [(agent, opposite), (opposite, agent)],
    }[action]


def connected(choices: Mapping[str, str]) -> nx.DiGraph[str]:
    """Who hears whom after a joint choice (agent -> action, in ring order): an edge runs from speaker to listener.

    Wishes are granted one by one, in agent order; one that would close a cycle is left out.
    """
    ring = tuple(choices)
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(ring)
    for agent, action in choices.items():
        for speaker, listener in wishes(agent, action, ring):
            if not nx.has_path(graph, listener, speaker):
                graph.add_edge(speaker, listener)
    return graph


class CommunicationConfig(TextGameConfig):
    """A problem, n agents and a graph of their own making. An unreadable answer costs its agent 1 and ends the game."""

    kind: str = "communication"
    task: Annotated[TaskConfig, Part("tasks", TaskConfig)]
    """Where problems come from. Their answers must be exact texts: nothing but those is compared."""
    agents: int = Field(default=3, ge=2)
    rounds: PositiveInt = 2
    """In each, all choose whom to hear and then answer; the answers of the last one count."""
    accuracy: NonNegativeFloat = 1.0
    """What the right answer pays everybody."""
    cost: NonNegativeFloat = 0.1
    """What everybody pays for talk, in proportion, once the budget is spent."""
    budget: PositiveInt = 200
    """Words said and heard by all agents, a choice being one: a game sees moves, not tokens."""

    @cached_property
    def tasks(self) -> Tasks:
        """The problems."""
        return self.task.build()

    def build(self) -> Communication:
        return Communication(self)

    def casting(self) -> Mapping[str, str]:
        return {f"agent_{place}": "speaker" for place in range(self.agents)}

    def held_out(self, n: int) -> Sequence[Mapping[str, Any]]:
        return held_out_starts(self.tasks, n)

    def problems(self, n: int) -> Sequence[Problem]:
        return samples(self.tasks, n)

    def missing(self) -> Iterable[str]:
        return (f"task.{problem}" for problem in self.task.missing())


class Communication(TextGame):
    """Each round all choose at once; then they answer in topological order, those at one depth at once.

    An agent hears its predecessors in the round's graph and nobody else: with their answer also what of theirs it has
    not heard before, from earlier rounds. The team's answer is the majority's (of several, that of the first agent).
    All are paid alike: `accuracy` * right - `cost` * min(words / `budget`, 1).
    """

    name = "communication"
    choices = ("split", "index", "problem")

    def __init__(self, config: CommunicationConfig) -> None:
        super().__init__(tuple(config.casting()), config.illegal)
        self.config, self.tasks = config, config.tasks

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.dealt = _dealt(self.tasks, rng, options)
        if not self.dealt.answer.strip():
            raise ValueError(f"communication: problem {self.dealt.key!r} has no answer that texts can be compared with")
        self.said: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Choices and answers in turn."""
        self.graphs: list[nx.DiGraph[str]] = []
        self._heard: dict[Edge, int] = {}
        """(speaker, listener) -> how many moves of the speaker the listener has heard, or is about to."""
        self._choosing, self._stage, self._later, self._right = True, self.seats, [], False
        return self.seats[0]

    def start_key(self) -> str:
        return self.dealt.key

    def problem(self) -> str:
        return self.dealt.key

    def examples(self, agent: str) -> tuple[str, ...]:
        return () if self._choosing else (self.dealt.answer, *self.dealt.wrong)

    def legal(self) -> tuple[str, ...] | None:
        return ACTIONS if self._choosing else None

    def together(self, agent: str) -> tuple[str, ...]:
        return self._stage

    def hears(self, agent: str) -> tuple[str, ...]:
        graph = None if self._choosing else self.graphs[-1]
        return tuple(other for other in self.seats if other == agent or (graph and graph.has_edge(other, agent)))

    def describe(self, agent: str) -> str:
        done = len(self.graphs) - (not self._choosing)
        last = [f"you said {self.said[agent][2 * done - 1]}"] if done else []
        ask = ["choose", *(f"[{action}]" for action in ACTIONS)] if self._choosing else ["answer"]
        now = f"{agent} . round {done + 1} of {self.config.rounds}"
        return " . ".join([self.dealt.question, now, *last, " ".join(ask)])

    def state_of(self, agent: str) -> str:
        known = {agent: self.said[agent]} | self._told(agent)
        return " . ".join([self.dealt.question, *(f"{who} : {' , '.join(moves)}" for who, moves in known.items())])

    def move(self, action: str) -> str | Mapping[str, float]:
        self.said[self.agent_selection].append(_spaced(action))
        self._stage = self._stage[1:] or self._next_stage()
        return self._stage[0] if self._stage else self._settle()

    def findings(self) -> Findings:
        """`success`; `edges` of all rounds together; `density`: their share of the most that have no cycle."""
        edges, most = sum(map(len, map(_edges, self.graphs))), len(self.seats) * (len(self.seats) - 1) / 2
        density = edges / most / max(len(self.graphs), 1)
        return Findings({"success": float(self._right), "edges": float(edges), "density": density})

    def spent(self) -> int:
        """Words said and heard so far, by all agents."""
        said = [*self.said.values(), *(moves for agent in self.seats for moves in self._told(agent).values())]
        return sum(len(move.split()) for moves in said for move in moves)

    def _told(self, listener: str) -> dict[str, list[str]]:
        """Speaker -> what `listener` has heard of it."""
        heard = {speaker: self._heard.get((speaker, listener), 0) for speaker in self.seats}
        return {speaker: self.said[speaker][:many] for speaker, many in heard.items() if many}

    def _next_stage(self) -> tuple[str, ...]:
        """The agents to be asked next, all at once; none at the end."""
        if self._choosing:
            self._choosing = False
            self._connect({agent: moves[-1] for agent, moves in self.said.items()})
        if self._later:
            return self._later.pop(0)
        self._choosing = len(self.graphs) < self.config.rounds
        return self.seats if self._choosing else ()

    def _connect(self, choices: Mapping[str, str]) -> None:
        graph = connected(choices)
        self.graphs.append(graph)
        self._heard |= dict.fromkeys(_edges(graph), 2 * len(self.graphs))
        self._later = [tuple(sorted(depth, key=self.seats.index)) for depth in nx.topological_generations(graph)]

    def _settle(self) -> Mapping[str, float]:
        answers = Counter(moves[-1] for moves in self.said.values())
        # Of equally frequent ones, most_common names first what was counted first.
        self._right = answers.most_common(1)[0][0] == _spaced(self.dealt.answer)
        paid = self.config.accuracy * self._right, -self.config.cost * min(self.spent() / self.config.budget, 1.0)
        for name, value in zip(("accuracy", "cost"), paid, strict=True):
            self.pay(dict.fromkeys(self.seats, value), name)
        return {}


def _spaced(text: str) -> str:
    """With one space between words: what else differs, differs."""
    return " ".join(text.split())


def _edges(graph: nx.DiGraph[str]) -> list[Edge]:
    return list(graph.edges)


@cache
def _whole() -> TypeAdapter[Problem]:
    return TypeAdapter(Problem)


def _dealt(tasks: Tasks, rng: random.Random, options: Mapping[str, Any]) -> Problem:
    if "problem" in options:
        return _whole().validate_python(options["problem"])
    split = options.get("split", "train")
    if split not in get_args(Split):
        raise ValueError(f"communication: option split: no split {split!r}; {nearest(str(split), get_args(Split))}")
    size = tasks.size(split)
    index = options["index"] if "index" in options else rng.randrange(max(size, 1))
    if type(index) is not int or not 0 <= index < size:
        raise ValueError(f"communication: option index: no problem {index!r} in split {split!r}, which has {size}")
    return tasks.problem(split, index)
