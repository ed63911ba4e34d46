"""Communication game: in every round, a team builds its own communication graph (Agent Q-Mix, arXiv 2604.00344)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, Literal, get_args

import networkx as nx
from pydantic import Field, NonNegativeFloat, PositiveInt

from marl.core.types import Findings
from marl.engines.scripted import Always, Tabular
from marl.games.base import TextGame, TextGameConfig
from marl.games.communication_graph import COMMUNICATION_ACTIONS, Edge, connect, edge_requesters, speaking_order
from marl.games.communication_optimum import OutcomeMeans, PerfectTeam
from marl.games.split_evidence import SplitEvidence, normalize_spaces
from marl.games.tasks.base import TaskGameConfig, deal_problem
from marl.protocols import AgentSetup, EngineConfig, Split
from marl.text.origins import MarkedText, Origin

MOST_ENUMERATED = 4
"""Maximum number of agents for enumeration: 4 agents have 6^4 joint choices."""


class CommunicationConfig(TaskGameConfig, TextGameConfig):
    """Team of agents on a problem, with a communication graph of its own choice. By default an illegal move costs 1.

    Answers are compared as exact texts, so the task needs short unique answers.
    """

    kind: str = "communication"
    example = "task: {kind: arithmetic, digits: [1, 2]}, agents: 3"
    agents: int = Field(default=3, ge=2, le=1000)
    """Number of agents."""
    rounds: PositiveInt = 2
    """Number of rounds. In each round all agents choose an action and then answer; answers of the last round count."""
    evidence: Literal["whole", "split"] = "whole"
    """Evidence shown to each agent: all of it, or only a part of the problem's fact `evidence` (task `records`)."""
    controllers: bool = False
    """True: `controller_i` chooses actions for `speaker_i`, so two policies can learn the two tasks. A controller reads
    the question without evidence, and the moves said and heard by its speaker. False: `agent_i` chooses and answers."""
    answer: Literal["majority", "respondent"] = "majority"
    """The team's answer: the most common answer, or the answer of the respondent named by the evidence."""
    accuracy: NonNegativeFloat = 1.0
    """Reward of every agent for the right answer."""
    cost: NonNegativeFloat = 0.1
    """Cost of talk for every agent: proportional to the words up to `budget`, and constant beyond."""
    budget: PositiveInt = 200
    """Budget of words spoken and heard by all agents, including one word per choice of an `agent_i`."""

    def build(self) -> CommunicationGame:
        return CommunicationGame(self)

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of the answering agents, in ring order."""
        prefix = "speaker" if self.controllers else "agent"
        return tuple(f"{prefix}_{index}" for index in range(self.agents))

    @property
    def choosers(self) -> tuple[str, ...]:
        """Names of the choosing agents, in the order of `speakers`."""
        prefix = "controller" if self.controllers else "agent"
        return tuple(f"{prefix}_{index}" for index in range(self.agents))

    def default_seats(self) -> Mapping[str, str]:
        controllers = dict.fromkeys(self.choosers, "controller") if self.controllers else {}
        return controllers | dict.fromkeys(self.speakers, "speaker")

    def conflicts(self, speakers: Mapping[str, AgentSetup]) -> Iterable[str]:
        if self.evidence == "split" or self.answer == "respondent":
            try:
                SplitEvidence.of(self.tasks.problem("train", 0))
            except ValueError as error:
                yield f"task: {error}"

    def opponents(self) -> Mapping[str, EngineConfig]:
        """Return one player per constant action, and the player `best_choices` if `is_exact`."""
        players: dict[str, EngineConfig] = {f"always_{action}": Always(move=action) for action in COMMUNICATION_ACTIONS}
        return players | ({"best_choices": self._best_choices()} if self.is_exact else {})

    @property
    def is_exact(self) -> bool:
        """True if outcomes can be enumerated: with controllers, one round, a respondent and at most four agents."""
        return self.controllers and self.rounds == 1 and self.agents <= MOST_ENUMERATED and self.answer == "respondent"

    @cached_property
    def perfect_team(self) -> PerfectTeam:
        """Team of perfect speakers with enumerated joint choices; raises ValueError unless `is_exact`."""
        if not self.is_exact:
            raise ValueError(
                f"agents: {self.agents}, rounds: {self.rounds}, controllers: {self.controllers}, answer: "
                f"{self.answer!r} are not enumerated; choices: agents: 2 to {MOST_ENUMERATED}, rounds: 1, controllers: "
                "true, answer: respondent"
            )
        return PerfectTeam(self.speakers, self.evidence == "split", self.team_reward)

    def exact_outcomes(self) -> Mapping[str, OutcomeMeans]:
        """Return decision rule -> exact mean outcome on the held-out problems under perfect speakers.

        Rules: `best_choices`: the best joint choice on every problem; `best_constant`: the best constant joint choice;
        the six actions: all agents always choose this action; `random`: uniform choices. Raises ValueError unless
        `is_exact`.
        """
        held_out = range(self.tasks.size("held_out"))
        return self.perfect_team.evaluate_decision_rules([self.tasks.problem("held_out", index) for index in held_out])

    def price(self, words: int) -> float:
        """Return every agent's cost for the `words` spoken and heard by all agents."""
        return self.cost * min(words / self.budget, 1.0)

    def team_reward(self, correct: bool, words: int) -> float:
        """Return the reward of every agent."""
        return self.accuracy * correct - self.price(words)

    def _best_choices(self) -> Tabular:
        """Return a player with the best joint choice on every problem."""
        table: dict[str, dict[str, float]] = {}
        game = self.build()
        for split in get_args(Split):
            for index in range(self.tasks.size(split)):
                game.reset(0, {"split": split, "index": index})
                choices = self.perfect_team.best(game.dealt_problem)
                for chooser, choice in zip(self.choosers, choices, strict=True):
                    table[game.infos[chooser]["state"]] = {choice: 1.0}
        return Tabular(table=table)


class CommunicationGame(TextGame):
    """In every round all agents choose at once, then answer in topological order of the resulting graph.

    An agent hears its predecessors in the graph: their new answers, and earlier moves not heard before. An agent
    without an edge is silent in this round unless its answer counts. The team's answer is the majority's (in a tie, the
    first agent's) or the respondent's. The common reward is `accuracy` * correct - `cost` * min(words / `budget`, 1).
    """

    name = "communication"
    reset_options = ("split", "index", "problem")

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
        self.evidence = SplitEvidence.of(problem) if dealt else None
        self._answering = (self.evidence.respondent_in(self.speakers),) if single and self.evidence else self.speakers
        """Agents with answers that count."""
        self.moves: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Agent -> its choices and answers, in order of play."""
        self.answers: dict[str, str] = {}
        """Agent -> its latest answer."""
        self._chosen_at: dict[str, int] = {}
        """Agent -> index of the step of its latest choice."""
        self._answered_at: dict[str, int] = {}
        """Agent -> index of the step of its latest answer."""
        self._gates: dict[str, tuple[int, ...]] = {}
        """Agent -> indices of the steps with the choices behind its edges in this round."""
        self.graphs: list[nx.DiGraph[str]] = []
        self._chosen: Counter[str] = Counter()
        self._heard_counts: dict[Edge, int] = {}
        """(speaker, listener) -> number of the speaker's moves heard by the listener, this round included."""
        self._choosing, self._stage, self._later_stages, self._correct = True, self.choosers, [], False
        return self.choosers[0]

    def start_key(self) -> str:
        return self.dealt_problem.key

    def problem_key(self) -> str:
        return self.dealt_problem.key

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return a perfect speaker's utterance if there is evidence, else the right answer and wrong answers."""
        if self._choosing:
            return ()
        if self.evidence is None:
            return (self.dealt_problem.answer, *self.dealt_problem.wrong)
        heard = [*chain.from_iterable(self._heard_moves(agent).values()), *self.moves[agent]]
        parts = self.evidence.inferable(self._held_parts(agent), heard, self.dealt_problem.answer)
        return (self.evidence.utterance(parts, self.dealt_problem.answer),)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        return COMMUNICATION_ACTIONS if self._choosing else None

    def together(self, agent: str) -> tuple[str, ...]:
        return self._stage

    def hears(self, agent: str) -> tuple[str, ...]:
        speaker = self._speaker_of.get(agent, agent)
        reads_graph = self.graphs and self._choosing == (speaker != agent)
        heard = set(self.graphs[-1].predecessors(speaker)) | {speaker} if reads_graph else set()
        return tuple(seat for seat in self.seats if seat == agent or seat in heard)

    def gates(self, agent: str) -> tuple[int, ...]:
        return () if self._choosing else self._gates.get(agent, ())

    def describe(self, agent: str) -> str:
        rounds_done = len(self.graphs) - (not self._choosing)
        speaker = self._speaker_of.get(agent, agent)
        request = (
            " ".join(["choose", *(f"[{action}]" for action in COMMUNICATION_ACTIONS)]) if self._choosing else "answer"
        )
        header = f"{agent} . round {rounds_done + 1} of {self.config.rounds}"
        observed = " . ".join([self.dealt_problem.question, header, *self._evidence_text(agent)])
        if not rounds_done or speaker not in self.answers:
            return MarkedText(f"{observed} . {request}")
        before, answer = f"{observed} . {'you' if speaker == agent else speaker} said ", self.answers[speaker]
        span = len(before), len(before) + len(answer), Origin(self._answered_at[speaker], "told")
        return MarkedText(f"{before}{answer} . {request}", (span,))

    def information_state(self, agent: str) -> str:
        speaker = self._speaker_of.get(agent, agent)
        moves_of = {agent: self.moves[agent], speaker: self.moves[speaker]} | self._heard_moves(speaker)
        lines = [f"{name} : {' , '.join(moves)}" for name, moves in moves_of.items()]
        return " . ".join([self.dealt_problem.question, *self._evidence_text(agent), *lines])

    def apply_action(self, action: str) -> str | Mapping[str, float]:
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

        `success`; `words` (spoken and heard); `edges` of all rounds; `density`: edges as a share of the maximum of an
        acyclic graph; `choice_entropy` of all choices [nats].
        """
        max_edges = self.config.agents * (self.config.agents - 1) / 2
        edges = sum(graph.number_of_edges() for graph in self.graphs)
        density = edges / max_edges / max(len(self.graphs), 1)
        measures = {"success": float(self._correct), "edges": float(edges), "density": density}
        shares = [count / self._chosen.total() for count in self._chosen.values()]
        entropy = math.fsum(share * -math.log(share) for share in shares)
        return Findings(measures | {"words": float(self.words_spent()), "choice_entropy": entropy})

    def words_spent(self) -> int:
        """Return the number of words spoken and heard by all agents so far. Choices of controllers are free."""
        words = 0
        for agent in self.speakers:
            for moves in (self.moves[agent], *self._heard_moves(agent).values()):
                words += sum(len(move.split()) for move in moves)
        return words

    def _held_parts(self, agent: str) -> list[str]:
        """Return the names of the parts of the evidence dealt to `agent`, or to the speaker of a controller."""
        if self.evidence is None:
            return []
        if self.config.evidence == "whole":
            return list(self.evidence.parts)
        return self.evidence.items_of(self._speaker_of.get(agent, agent), self.speakers)

    def _evidence_text(self, agent: str) -> list[str]:
        """Return the sentence about the evidence in an observation, or []; a controller reads only names of parts."""
        names = self._held_parts(agent)
        if self.evidence is None or not names:
            return []
        if agent in self.speakers:
            return [f"you hold {' '.join(self.evidence.parts[name] for name in names)}"]
        return [f"{self._speaker_of[agent]} holds {' '.join(names)}"]

    def _heard_moves(self, listener: str) -> dict[str, list[str]]:
        """Return speaker -> moves of this speaker heard by `listener`."""
        moves: dict[str, list[str]] = {}
        for speaker in self.speakers:
            if count := self._heard_counts.get((speaker, listener), 0):
                moves[speaker] = self.moves[speaker][:count]
        return moves

    def _next_stage(self) -> tuple[str, ...]:
        """Return the agents to be asked next, all at once, or () at the end of the game."""
        if self._choosing:
            self._choosing = False
            choices = {self._speaker_of[chooser]: self.moves[chooser][-1] for chooser in self.choosers}
            steps = {self._speaker_of[chooser]: step for chooser, step in self._chosen_at.items()}
            graph = connect(choices)
            self.graphs.append(graph)
            self._chosen.update(choices.values())
            for speaker, listener in graph.edges:
                # One more than the moves so far: the speaker's answer in this round.
                self._heard_counts[speaker, listener] = len(self.moves[speaker]) + 1
            self._later_stages = speaking_order(graph, self._answering)
            for agent, requesters in edge_requesters(choices, graph).items():
                self._gates[agent] = tuple(sorted(map(steps.__getitem__, requesters)))
        if self._later_stages:
            return self._later_stages.pop(0)
        self._choosing = len(self.graphs) < self.config.rounds
        return self.choosers if self._choosing else ()

    def _pay_team(self) -> Mapping[str, float]:
        answers = Counter(self.answers[speaker] for speaker in self._answering)
        # In a tie, `most_common` returns the answer counted first, so the first agent's.
        self._correct = answers.most_common(1)[0][0] == normalize_spaces(self.dealt_problem.answer)
        accuracy, cost = self.config.accuracy * self._correct, -self.config.price(self.words_spent())
        whose = "most common answer" if self.config.answer == "majority" else f"answer of {self._answering[0]}"
        self.add_rewards(dict.fromkeys(self.seats, accuracy), "accuracy", f"{whose} against the right one")
        self.add_rewards(
            dict.fromkeys(self.seats, cost), "cost", f"{self.words_spent()} words of a budget of {self.config.budget}"
        )
        return {}


def _rules(config: CommunicationConfig) -> str:
    """Return the rules of the game in words."""
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
