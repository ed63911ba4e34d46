"""Communication game: round by round, a team decides who hears whom (actions of Agent Q-Mix, arXiv 2604.00344)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, get_args

import networkx as nx
from pydantic import Field, NonNegativeFloat, PositiveInt

from games.base import TextGame, TextGameConfig
from games.communication_graph import ACTIONS, Edge, connect, deciders, speaking_order
from games.communication_values import PerfectTeam, PlayFigures
from games.evidence import DealtEvidence, normalize_spaces
from games.tasks.base import TaskGameConfig, deal_problem
from marl.engines.scripted import Always, Tabular
from marl.protocols import EngineConfig, Speaker, Split
from marl.provenance import Marked, Origin
from marl.types import Findings

MOST_ENUMERATED = 4
"""Most agents whose joint choices are enumerated: 6^4 of them."""


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
    evidence: Literal["whole", "split"] = "whole"
    """Share of the problem that each agent is told: all of it, or a part of its fact `evidence` (task `records`)."""
    controllers: bool = False
    """True: each `controller_i` chooses for a `speaker_i`, so that two policies may do it. A controller reads the
    question but no evidence, and what its speaker said and heard in the round before. False: `agent_i` does both."""
    answer: Literal["majority", "respondent"] = "majority"
    """The answer that counts: the most common one, or that of the agent that the evidence names as respondent."""
    accuracy: NonNegativeFloat = 1.0
    """Reward of every agent for the right answer."""
    cost: NonNegativeFloat = 0.1
    """Cost of talk for every agent: proportional, and the whole once the budget is spent."""
    budget: PositiveInt = 200
    """Words spoken and heard by all agents, a choice of an `agent_i` being one: a game sees moves, not tokens."""

    def build(self) -> Communication:
        return Communication(self)

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of the agents that speak, in ring order."""
        return tuple(f"{'speaker' if self.controllers else 'agent'}_{place}" for place in range(self.agents))

    @property
    def choosers(self) -> tuple[str, ...]:
        """Names of the agents that choose for them."""
        return tuple(speaker.replace("speaker", "controller") for speaker in self.speakers)

    def default_seats(self) -> Mapping[str, str]:
        controllers = dict.fromkeys(self.choosers, "controller") if self.controllers else {}
        return controllers | dict.fromkeys(self.speakers, "speaker")

    def conflicts(self, speakers: Mapping[str, Speaker]) -> Iterable[str]:
        if self.evidence == "split" or self.answer == "respondent":
            try:
                DealtEvidence.of(self.tasks.problem("train", 0))
            except ValueError as error:
                yield f"task: {error}"

    def opponents(self) -> Mapping[str, EngineConfig]:
        """Return a player for each action, which always chooses it, and `best_choices` where `exact` is known."""
        players: dict[str, EngineConfig] = {f"always_{action}": Always(move=action) for action in ACTIONS}
        return players | ({"best_choices": self._best_choices()} if self.is_exact else {})

    @property
    def is_exact(self) -> bool:
        """True if `exact` can be worked out: controllers, one round, one respondent, and at most four agents."""
        return self.controllers and self.rounds == 1 and self.agents <= MOST_ENUMERATED and self.answer == "respondent"

    @cached_property
    def perfect_team(self) -> PerfectTeam:
        """Team of perfect speakers, whose joint choices are enumerated; raises ValueError unless `is_exact`."""
        if not self.is_exact:
            raise ValueError(
                f"agents: {self.agents}, rounds: {self.rounds}, controllers: {self.controllers}, answer: "
                f"{self.answer!r} are not enumerated; choices: agents: 2 to {MOST_ENUMERATED}, rounds: 1, controllers: "
                "true, answer: respondent"
            )
        return PerfectTeam(self.speakers, self.evidence == "split", self.payment)

    def exact(self) -> Mapping[str, PlayFigures]:
        """Return what choices earn on the held-out problems under perfect speakers, worked out by enumeration.

        `best_choices`: the best decision rule; `best_constant`: the best one that looks at no problem; each of the six
        actions: all agents always choose it; `random`: all choose uniformly. Raises ValueError unless `is_exact`.
        """
        held_out = range(self.tasks.size("held_out"))
        return self.perfect_team.figures([self.tasks.problem("held_out", index) for index in held_out])

    def price(self, words: int) -> float:
        """Return what each agent pays for the words that all have spoken and heard."""
        return self.cost * min(words / self.budget, 1.0)

    def payment(self, correct: bool, words: int) -> float:
        """Return the reward of every agent."""
        return self.accuracy * correct - self.price(words)

    def _best_choices(self) -> Tabular:
        """Return a player that makes the best joint choice on every problem."""
        table: dict[str, dict[str, float]] = {}
        game = self.build()
        for split in get_args(Split):
            for index in range(self.tasks.size(split)):
                game.reset(0, {"split": split, "index": index})
                choices = self.perfect_team.best(game.dealt_problem)
                for chooser, choice in zip(self.choosers, choices, strict=True):
                    table[game.infos[chooser]["state"]] = {choice: 1.0}
        return Tabular(table=table)


class Communication(TextGame):
    """Each round all choose at once; then they answer in topological order, those at one depth at once.

    An agent hears its predecessors in the round's graph: their new answer, and their earlier moves that it has not
    heard before. Who is on no edge is silent in that round unless its answer counts. The team's answer is the
    majority's (of equally frequent ones, that of the first agent), or that of the respondent. All are paid
    alike: `accuracy` * correct - `cost` * min(words / `budget`, 1).
    """

    name = "communication"
    choices = ("split", "index", "problem")

    def __init__(self, config: CommunicationConfig) -> None:
        super().__init__(tuple(config.default_seats()), config.illegal)
        self.config, self.tasks = config, config.tasks
        self.speakers, self.choosers = config.speakers, config.choosers
        self._speaker_of = dict(zip(self.choosers, self.speakers, strict=True))
        self.rules = _rules(config)

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.dealt_problem = problem = deal_problem(self.name, self.tasks, rng, options)
        if not problem.answer.strip():
            raise ValueError(f"communication: problem {problem.key!r} has no answer that texts can be compared with")
        single = self.config.answer == "respondent"
        dealt = single or self.config.evidence == "split" or "evidence" in problem.facts
        self.evidence = DealtEvidence.of(problem) if dealt else None
        self._answering = (self.evidence.respondent_in(self.speakers),) if single and self.evidence else self.speakers
        """The agents whose answers count."""
        self.moves: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Agent -> its choices and answers in turn."""
        self.answers: dict[str, str] = {}
        """Agent -> its latest answer."""
        self._chosen_at: dict[str, int] = {}
        """Agent -> the step of its latest choice."""
        self._answered_at: dict[str, int] = {}
        """Agent -> the step of its latest answer."""
        self._gates: dict[str, tuple[int, ...]] = {}
        """Agent -> the steps of the choices that decided that it speaks in this round, or whom it hears."""
        self.graphs: list[nx.DiGraph[str]] = []
        self._chosen: Counter[str] = Counter()
        self._heard_counts: dict[Edge, int] = {}
        """(speaker, listener) -> number of the speaker's moves that the listener has heard, or is about to hear."""
        self._choosing, self._stage, self._later_stages, self._correct = True, self.choosers, [], False
        return self.choosers[0]

    def start_key(self) -> str:
        return self.dealt_problem.key

    def problem(self) -> str:
        return self.dealt_problem.key

    def examples(self, agent: str) -> tuple[str, ...]:
        """Return what a perfect speaker would say, where there is evidence; else the right answer and wrong ones."""
        if self._choosing:
            return ()
        if self.evidence is None:
            return (self.dealt_problem.answer, *self.dealt_problem.wrong)
        heard = [move for moves in self._heard_moves(agent).values() for move in moves]
        known = self.evidence.known(self._held(agent), [*heard, *self.moves[agent]], self.dealt_problem.answer)
        return (self.evidence.utterance(known, self.dealt_problem.answer),)

    def legal(self, agent: str) -> tuple[str, ...] | None:
        return ACTIONS if self._choosing else None

    def together(self, agent: str) -> tuple[str, ...]:
        return self._stage

    def hears(self, agent: str) -> tuple[str, ...]:
        speaker = self._speaker_of.get(agent, agent)
        reads_graph = self.graphs and self._choosing == (speaker != agent)
        heard = set(self.graphs[-1].predecessors(speaker)) | {speaker} if reads_graph else set()
        return tuple(each for each in self.seats if each == agent or each in heard)

    def gates(self, agent: str) -> tuple[int, ...]:
        return () if self._choosing else self._gates.get(agent, ())

    def describe(self, agent: str) -> str:
        rounds_done = len(self.graphs) - (not self._choosing)
        speaker = self._speaker_of.get(agent, agent)
        request = " ".join(["choose", *(f"[{action}]" for action in ACTIONS)]) if self._choosing else "answer"
        header = f"{agent} . round {rounds_done + 1} of {self.config.rounds}"
        known = " . ".join([self.dealt_problem.question, header, *self._holding(agent)])
        if not rounds_done or speaker not in self.answers:
            return Marked(f"{known} . {request}")
        before, answer = f"{known} . {'you' if speaker == agent else speaker} said ", self.answers[speaker]
        span = len(before), len(before) + len(answer), Origin(self._answered_at[speaker], "told")
        return Marked(f"{before}{answer} . {request}", (span,))

    def state_of(self, agent: str) -> str:
        speaker = self._speaker_of.get(agent, agent)
        known = {agent: self.moves[agent], speaker: self.moves[speaker]} | self._heard_moves(speaker)
        moves = (f"{speaker} : {' , '.join(moves)}" for speaker, moves in known.items())
        return " . ".join([self.dealt_problem.question, *self._holding(agent), *moves])

    def move(self, action: str) -> str | Mapping[str, float]:
        agent, text, step = self.agent_selection, normalize_spaces(action), self.steps_taken - 1
        self.moves[agent].append(text)
        if self._choosing:
            self._chosen_at[agent] = step
        else:
            self.answers[agent], self._answered_at[agent] = text, step
        self._stage = self._stage[1:] or self._next_stage()
        return self._stage[0] if self._stage else self._pay_team()

    def findings(self) -> Findings:
        """Return the measures of the episode.

        `success`, `words` (spoken and heard), the `edges` of all rounds, `density`, their share of the most that an
        acyclic graph has, and `choice_entropy` of all choices, in nats.
        """
        most = self.config.agents * (self.config.agents - 1) / 2
        edges = sum(graph.number_of_edges() for graph in self.graphs)
        density = edges / most / max(len(self.graphs), 1)
        measures = {"success": float(self._correct), "edges": float(edges), "density": density}
        return Findings(measures | {"words": float(self.words_spent()), "choice_entropy": _entropy(self._chosen)})

    def words_spent(self) -> int:
        """Return the number of words spoken and heard so far, by all agents; of a controller nobody hears."""
        heard = (moves for agent in self.speakers for moves in self._heard_moves(agent).values())
        made = (self.moves[agent] for agent in self.speakers)
        return sum(len(move.split()) for moves in (*made, *heard) for move in moves)

    def _held(self, agent: str) -> list[str]:
        """Return the names of the parts of the evidence that an agent, or the one it chooses for, holds."""
        if self.evidence is None:
            return []
        if self.config.evidence == "whole":
            return list(self.evidence.parts)
        return self.evidence.held_by(self._speaker_of.get(agent, agent), self.speakers)

    def _holding(self, agent: str) -> list[str]:
        """Return what an agent is told about the evidence: a controller gets names alone."""
        held = self._held(agent)
        if self.evidence is None or not held:
            return []
        if agent in self.speakers:
            return [f"you hold {' '.join(self.evidence.parts[name] for name in held)}"]
        return [f"{self._speaker_of[agent]} holds {' '.join(held)}"]

    def _heard_moves(self, listener: str) -> dict[str, list[str]]:
        """Return speaker -> the moves that `listener` has heard of it."""
        counts = {speaker: self._heard_counts.get((speaker, listener), 0) for speaker in self.speakers}
        return {speaker: self.moves[speaker][:count] for speaker, count in counts.items() if count}

    def _next_stage(self) -> tuple[str, ...]:
        """Return the agents to be asked next, all at once; none at the end."""
        if self._choosing:
            self._choosing = False
            choices = {self._speaker_of[chooser]: self.moves[chooser][-1] for chooser in self.choosers}
            steps = {self._speaker_of[chooser]: step for chooser, step in self._chosen_at.items()}
            self._add_graph(choices)
            by_whom = deciders(choices, self.graphs[-1])
            self._gates = {agent: tuple(sorted(steps[each] for each in by_whom[agent])) for agent in choices}
        if self._later_stages:
            return self._later_stages.pop(0)
        self._choosing = len(self.graphs) < self.config.rounds
        return self.choosers if self._choosing else ()

    def _add_graph(self, choices: Mapping[str, str]) -> None:
        graph = connect(choices)
        self.graphs.append(graph)
        self._chosen.update(choices.values())
        # The move after those made so far is the speaker's answer in this round.
        self._heard_counts |= {(speaker, listener): len(self.moves[speaker]) + 1 for speaker, listener in graph.edges}
        self._later_stages = speaking_order(graph, self._answering)

    def _pay_team(self) -> Mapping[str, float]:
        answers = Counter(self.answers[speaker] for speaker in self._answering)
        # Of equally frequent ones, most_common names first what was counted first.
        self._correct = answers.most_common(1)[0][0] == normalize_spaces(self.dealt_problem.answer)
        accuracy, cost = self.config.accuracy * self._correct, -self.config.price(self.words_spent())
        whose = "most common answer" if self.config.answer == "majority" else f"answer of {self._answering[0]}"
        self.pay(dict.fromkeys(self.seats, accuracy), "accuracy", f"{whose} against the right one")
        self.pay(
            dict.fromkeys(self.seats, cost), "cost", f"{self.words_spent()} words of a budget of {self.config.budget}"
        )
        return {}


def _rules(config: CommunicationConfig) -> str:
    """Return the rules in words."""
    split = "Each holds only a part of what there is to know; who does not know the answer says what it knows of it. "
    partly = split if config.evidence == "split" else ""
    speaks = "each" if config.answer == "majority" else "each who hears somebody, is heard or has to answer"
    counts = "The majority's answer" if config.answer == "majority" else "The answer of the player who has to answer"
    you = "your speaker" if config.controllers else "you"
    verb = "hears" if config.controllers else "hear"
    return (
        f"A team of {config.agents} solves a problem in {config.rounds} rounds. {partly}In each round all first choose "
        f"at once how they talk: [alone] to nobody, [broadcast] all hear {you}, [query] {you} {verb} the next player, "
        f"[aggregate] {you} {verb} all, [verify] the next player hears {you}, [debate] {you} and the player opposite "
        f"hear each other. Then {speaks} gives an answer to the problem. {counts} in the last round counts, and talk "
        "costs a little."
    )


def _entropy(counted: Counter[str]) -> float:
    """Return the entropy of a distribution given by counts, in nats; 0 of none."""
    shares = [count / counted.total() for count in counted.values()]
    return math.fsum(share * -math.log(share) for share in shares)
