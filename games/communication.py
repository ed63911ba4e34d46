"""Communication game: in every round, a team builds its own communication graph (Agent Q-Mix, arXiv 2604.00344)."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import networkx as nx
from pydantic import Field, NonNegativeFloat, PositiveInt

from marl.core.seeds import hash_to_seed
from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.engines.scripted import Always, ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig, format_move_menu
from marl.games.communication_graph import (
    COMMUNICATION_ACTIONS,
    Edge,
    build_communication_graph,
    edge_requesters_by_agent,
    speaking_order,
)
from marl.games.communication_optimum import MeanEpisodeOutcome, PerfectSpeakerTeam
from marl.games.split_evidence import NOTHING, EvidenceInParts, normalize_spaces
from marl.games.tasks.base import TaskGameConfig, deal_problem
from marl.protocols import AgentRoleAndEngine, EngineConfig, Split
from marl.text.origins import TextOrigin, TextWithOrigins
from marl.text.word_count import count_words

MOST_ENUMERATED = 6
"""Maximum number of agents of a game whose joint choices are enumerated: 6 agents have 6^6 joint choices."""


class CommunicationConfig(TaskGameConfig, TextGameConfig):
    """Team that solves a problem and chooses its own communication graph. By default an illegal move costs 1.

    An answer counts as right only if its text equals the right answer, so the task needs short unique answers.
    """

    kind: str = "communication"
    example = "task: {kind: arithmetic, digits: [1, 2]}, agents: 3"
    agents: int = Field(default=3, ge=2, le=1000)
    """Number of agents that answer."""
    rounds: PositiveInt = 2
    """Number of rounds. In each round all agents choose an action and then answer; only the last round is scored."""
    evidence: Literal["whole", "split"] = "whole"
    """Evidence that each agent sees: the problem's whole evidence, or only a part of it (task `records`)."""
    controllers: bool = False
    """True: `controller_i` chooses the actions of `speaker_i`, so that one policy can learn to choose and another to
    speak. A controller reads the question without evidence, and the moves that its speaker made or read.
    False: `agent_i` does both."""
    answer: Literal["majority", "respondent"] = "majority"
    """The team's answer: the most common answer, or the answer of the respondent named by the evidence."""
    accuracy: NonNegativeFloat = 1.0
    """Reward of every agent for the right answer."""
    cost: NonNegativeFloat = 0.1
    """Cost of talk for every agent at `budget` words or more; for fewer words the cost is proportionally lower."""
    noise: float = Field(default=0.0, ge=0, le=1)
    """Probability that a speaker by rule loses a word: its utterance lacks one word, drawn at random, or is `none` if
    it has a single one (erasure channel). Needs a task with evidence; models that imitate such speakers imitate this,
    too."""
    budget: PositiveInt = 200
    """Number of words, spoken and heard by all agents, at which talk costs `cost`. A choice by `agent_i` is a word."""

    def build(self) -> CommunicationGame:
        return CommunicationGame(self)

    @property
    def speakers(self) -> tuple[str, ...]:
        """Names of the agents that answer, in ring order."""
        prefix = "speaker" if self.controllers else "agent"
        return tuple(f"{prefix}_{index}" for index in range(self.agents))

    @property
    def edge_choosing_agents(self) -> tuple[str, ...]:
        """Names of the agents that choose actions, in the order of `speakers`."""
        return tuple(f"controller_{index}" for index in range(self.agents)) if self.controllers else self.speakers

    def default_role_of_agent(self) -> Mapping[str, str]:
        controllers = dict.fromkeys(self.edge_choosing_agents, "controller") if self.controllers else {}
        return controllers | dict.fromkeys(self.speakers, "speaker")

    def seating_conflicts(self, speakers: Mapping[str, AgentRoleAndEngine]) -> Iterable[str]:
        if self.evidence == "split" or self.answer == "respondent" or self.noise:
            try:
                EvidenceInParts.from_problem(self.task_problems.problem("train", 0))
            except ValueError as error:
                yield f"task: {error}"

    def reference_players(self) -> Mapping[str, EngineConfig]:
        """Return one player per constant action and, if `can_enumerate_joint_choices`, `best_choices`: the best joint
        choices."""
        players: dict[str, EngineConfig] = {f"always_{action}": Always(move=action) for action in COMMUNICATION_ACTIONS}
        if not self.can_enumerate_joint_choices:
            return players
        return players | {"best_choices": BestJointChoices(game=self)}

    def best_choice_in_state(self, state: str) -> str | None:
        """Return the action of an agent with information state `state` in the best joint choice, or None if no problem
        leads to this state; raises ValueError unless `can_enumerate_joint_choices`."""
        # Held-out problems come first: they are fewer, and enumerating a problem under noise takes a second.
        splits: tuple[Split, ...] = ("held_out", "train")
        for split in splits:
            if split not in self._best_choices:
                self._best_choices[split] = self._best_choice_by_state(split)
            if state in self._best_choices[split]:
                return self._best_choices[split][state]
        return None

    @cached_property
    def _best_choices(self) -> dict[str, Mapping[str, str]]:
        """Split -> (information state of an agent that chooses -> its action), for splits enumerated so far."""
        return {}

    def _best_choice_by_state(self, split: Split) -> Mapping[str, str]:
        choice_by_state: dict[str, str] = {}
        game = self.build()
        for index in range(self.task_problems.problem_count(split)):
            game.reset(0, {"split": split, "index": index})
            best_choices = self.perfect_speaker_team.best_joint_action(game.dealt_problem)
            for chooser, choice in zip(self.edge_choosing_agents, best_choices, strict=True):
                choice_by_state[game.infos[chooser]["state"]] = choice
        return choice_by_state

    @property
    def can_enumerate_joint_choices(self) -> bool:
        """True if joint choices can be enumerated: with controllers, one round, a respondent and at most 6 agents."""
        return self.controllers and self.rounds == 1 and self.agents <= MOST_ENUMERATED and self.answer == "respondent"

    @cached_property
    def perfect_speaker_team(self) -> PerfectSpeakerTeam:
        """Team of perfect speakers, whose joint choices are enumerated; raises ValueError unless
        `can_enumerate_joint_choices`."""
        if not self.can_enumerate_joint_choices:
            raise ValueError(
                f"agents: {self.agents}, rounds: {self.rounds}, controllers: {self.controllers}, answer: "
                f"{self.answer!r} are not enumerated; choices: agents: 2 to {MOST_ENUMERATED}, rounds: 1, controllers: "
                "true, answer: respondent"
            )
        return PerfectSpeakerTeam(self.speakers, self.evidence == "split", self.reward_of_each_agent, self.noise)

    def outcome_by_decision_rule(self) -> Mapping[str, MeanEpisodeOutcome]:
        """Return decision rule -> exact mean outcome on the held-out problems under perfect speakers, whose utterances
        lose words if there is `noise`.

        Rules: `best_choices`: the best joint choice on every problem; `best_constant`: the best constant joint choice;
        the six actions: all agents always choose this action; `random`: uniform choices. Raises ValueError unless
        `can_enumerate_joint_choices`.
        """
        problems = [
            self.task_problems.problem("held_out", index)
            for index in range(self.task_problems.problem_count("held_out"))
        ]
        return self.perfect_speaker_team.mean_outcomes_of_decision_rules(problems)

    def reward_of_each_agent(self, correct: bool, word_count: int) -> float:
        """Return the reward of every agent for a right or wrong answer and `word_count` words spoken and heard."""
        return self.accuracy * correct - self.cost * min(word_count / self.budget, 1.0)


class BestJointChoices(ScriptedConfig):
    """Plays each agent's part of the best joint choice, which is enumerated at the first move: it takes seconds."""

    kind: str = "best_choices"
    game: CommunicationConfig
    """Settings of the game, whose best joint choices are played."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        """Return probability 1 for the best action, or equal probabilities in a state without a known choice."""
        choice = self.game.best_choice_in_state(state)
        return {choice: 1.0} if choice else dict.fromkeys(moves, 1 / len(moves))


class CommunicationGame(TextGame):
    """Game in rounds: all agents choose at once, then answer in topological order of the resulting graph.

    An agent hears the new answers of its predecessors in the graph, and their earlier moves. An agent without an edge
    is silent in this round unless its answer counts. The team's answer is the majority's (in a tie, the first agent's)
    or the respondent's. The common reward is `accuracy` * correct - `cost` * min(words / `budget`, 1); the cost of a
    round's words is paid at the end of the round.
    """

    name = "communication"
    reset_options = ("split", "index", "problem")

    def __init__(self, config: CommunicationConfig) -> None:
        super().__init__(tuple(config.default_role_of_agent()), config.illegal)
        self.config = config
        self.speakers, self.edge_choosing_agents = config.speakers, config.edge_choosing_agents
        self._speaker_of = dict(zip(self.edge_choosing_agents, self.speakers, strict=True))
        part = ""
        if config.evidence == "split":
            part = "Each holds only a part of what there is to know; "
            part += "who does not know the answer says what it knows of it. "
        speaks = "each" if config.answer == "majority" else "each who hears somebody, is heard or has to answer"
        counts = "The answer of the player who has to answer"
        if config.answer == "majority":
            counts = "The majority's answer"
        you = "your speaker" if config.controllers else "you"
        verb = "hears" if config.controllers else "hear"
        self.rules = (
            f"A team of {config.agents} solves a problem in {config.rounds} rounds. {part}In each round all first "
            f"choose at once how they talk: [alone] to nobody, [broadcast] all hear {you}, [query] {you} {verb} the "
            f"next player, [aggregate] {you} {verb} all, [verify] the next player hears {you}, [debate] {you} and the "
            f"player opposite hear each other. Then {speaks} gives an answer to the problem. {counts} in the last "
            "round counts, and talk costs a little."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.dealt_problem = problem = deal_problem(self.name, self.config.task_problems, rng, options)
        self._noise_seed = rng.getrandbits(64)
        if not problem.answer.strip():
            raise ValueError(f"communication: problem {problem.key!r} has no answer that texts can be compared with")
        single = self.config.answer == "respondent"
        dealt = single or self.config.evidence == "split" or "evidence" in problem.facts
        self.evidence = EvidenceInParts.from_problem(problem) if dealt else None
        self._answering = (
            (self.evidence.agent_that_must_answer(self.speakers),) if single and self.evidence else self.speakers
        )
        """Agents whose answers decide the team's answer."""
        self.moves: dict[str, list[str]] = {agent: [] for agent in self.seats}
        """Agent -> its choices and answers so far, in order of play."""
        self.answers: dict[str, str] = {}
        """Agent -> its latest answer."""
        self._chosen_at: dict[str, int] = {}
        """Agent -> index of the game's step with its latest choice."""
        self._answered_at: dict[str, int] = {}
        """Agent -> index of the game's step with its latest answer."""
        self._gates: dict[str, tuple[int, ...]] = {}
        """Agent -> indices of the game's steps with the choices that requested its edges in this round."""
        self.graphs: list[nx.DiGraph[str]] = []
        self._chosen: Counter[str] = Counter()
        self._heard_counts: dict[Edge, int] = {}
        """(speaker, listener) -> number of the speaker's moves that the listener has heard, this round included."""
        self._charged = 0.0
        """(Negative) cost of communication that every agent has paid so far."""
        self._choosing, self._stage, self._later_stages, self._correct = True, self.edge_choosing_agents, [], False
        return self.edge_choosing_agents[0]

    def start_state_key(self) -> str:
        return self.dealt_problem.key

    problem_key = start_state_key

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return the utterance of a perfect speaker or, for a problem without evidence, right and wrong answers."""
        if self._choosing:
            return ()
        if self.evidence is None:
            return (self.dealt_problem.answer, *self.dealt_problem.wrong)
        heard = [*chain.from_iterable(self._heard_moves_by_speaker(agent).values()), *self.moves[agent]]
        parts = self.evidence.part_names_dealt_to(agent, self.speakers, self.config.evidence == "split")
        utterance = self.evidence.perfect_utterance(parts, heard, self.dealt_problem.answer)
        return (self._through_noise(utterance, len(self.moves[agent]), agent),)

    def _through_noise(self, utterance: str, turn_index: int, agent: str) -> str:
        """Return `utterance`, with probability `noise` without one word; the same text for the same turn of a deal."""
        if not self.config.noise:
            return utterance
        draws = random.Random(hash_to_seed("noise", self._noise_seed, agent, turn_index))
        if draws.random() >= self.config.noise:
            return utterance
        words = utterance.split()
        del words[draws.randrange(len(words))]
        return " ".join(words) or NOTHING

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        return COMMUNICATION_ACTIONS if self._choosing else None

    def agents_asked_together(self, agent: str) -> tuple[str, ...]:
        return self._stage

    def heard_agents(self, agent: str) -> tuple[str, ...]:
        speaker = self._speaker_of.get(agent, agent)
        reads_graph = self.graphs and self._choosing == (speaker != agent)
        heard = set(self.graphs[-1].predecessors(speaker)) | {speaker} if reads_graph else set()
        return tuple(seat for seat in self.seats if seat == agent or seat in heard)

    def step_indices_that_decided_turn(self, agent: str) -> tuple[int, ...]:
        return () if self._choosing else self._gates.get(agent, ())

    def describe_observation(self, agent: str) -> str:
        rounds_done = len(self.graphs) - (not self._choosing)
        speaker = self._speaker_of.get(agent, agent)
        request = f"choose {format_move_menu(COMMUNICATION_ACTIONS)}" if self._choosing else "answer"
        header = f"{agent} . round {rounds_done + 1} of {self.config.rounds}"
        observed = " . ".join([self.dealt_problem.question, header, *self._evidence_sentences(agent)])
        if not rounds_done or speaker not in self.answers:
            return TextWithOrigins(f"{observed} . {request}")
        before, answer = f"{observed} . {'you' if speaker == agent else speaker} said ", self.answers[speaker]
        span = len(before), len(before) + len(answer), TextOrigin(self._answered_at[speaker], "told")
        return TextWithOrigins(f"{before}{answer} . {request}", (span,))

    def information_state(self, agent: str) -> str:
        speaker = self._speaker_of.get(agent, agent)
        moves_of = {agent: self.moves[agent], speaker: self.moves[speaker]} | self._heard_moves_by_speaker(speaker)
        lines = [f"{name} : {' , '.join(moves)}" for name, moves in moves_of.items()]
        return " . ".join([self.dealt_problem.question, *self._evidence_sentences(agent), *lines])

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent, text, step = self.agent_selection, normalize_spaces(action), self.steps_taken - 1
        self.moves[agent].append(text)
        if self._choosing:
            self._chosen_at[agent] = step
        else:
            self.answers[agent], self._answered_at[agent] = text, step
        self._stage = self._stage[1:]
        if not self._stage and self._choosing:
            # All agents have chosen their edges, so the round's graph and the order of answers are known.
            self._choosing = False
            choices = {self._speaker_of[chooser]: self.moves[chooser][-1] for chooser in self.edge_choosing_agents}
            steps = {self._speaker_of[chooser]: index for chooser, index in self._chosen_at.items()}
            graph = build_communication_graph(choices)
            self.graphs.append(graph)
            self._chosen.update(choices.values())
            for speaker, listener in graph.edges:
                # The listener hears the speaker's earlier moves and the speaker's answer in this round.
                self._heard_counts[speaker, listener] = len(self.moves[speaker]) + 1
            self._later_stages = speaking_order(graph, self._answering)
            for speaker, requesters in edge_requesters_by_agent(choices, graph).items():
                self._gates[speaker] = tuple(sorted(map(steps.__getitem__, requesters)))
        if not self._stage and self._later_stages:
            self._stage = self._later_stages.pop(0)
        elif not self._stage:
            self._charge_for_words()
            if len(self.graphs) < self.config.rounds:
                self._choosing, self._stage = True, self.edge_choosing_agents
        if self._stage:
            return self._stage[0]
        answers = Counter(self.answers[speaker] for speaker in self._answering)
        # Among equally frequent answers, `most_common` returns the answer of the earliest agent.
        self._correct = answers.most_common(1)[0][0] == normalize_spaces(self.dealt_problem.answer)
        accuracy = self.config.accuracy * self._correct
        whose = "most common answer" if self.config.answer == "majority" else f"answer of {self._answering[0]}"
        self.add_rewards(dict.fromkeys(self.seats, accuracy), "accuracy", f"{whose} against the right one")
        return {}

    def _charge_for_words(self) -> None:
        """Charge every agent for the words of the round that ends, so that a round's reward contains no earlier cost.

        The charges of all rounds add up to `reward_of_each_agent(False, words)`, the cost of all words.
        """
        words = self.communication_word_count()
        total = self.config.reward_of_each_agent(False, words)
        cause = f"{words} words of a budget of {self.config.budget}"
        self.add_rewards(dict.fromkeys(self.seats, total - self._charged), "cost", cause)
        self._charged = total

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the episode.

        `success`: 1 for a right answer; `words` spoken and heard; `edges` of all rounds; `density`: edges as a fraction
        of the maximum of acyclic graphs; `choice_entropy` of the choices [nats].
        """
        max_edges = self.config.agents * (self.config.agents - 1) / 2
        edges = sum(map(nx.number_of_edges, self.graphs))
        density = edges / max_edges / max(len(self.graphs), 1)
        measures = {"success": float(self._correct), "edges": float(edges), "density": density}
        entropy_terms: list[float] = []
        for count in self._chosen.values():
            share = count / self._chosen.total()
            entropy_terms.append(share * -math.log(share))
        return EpisodeMeasuresAndNewStarts(
            measures | {"words": float(self.communication_word_count()), "choice_entropy": math.fsum(entropy_terms)}
        )

    def communication_word_count(self) -> int:
        """Return the number of words spoken and heard by all agents so far. Choices of controllers do not count."""
        words = 0
        for agent in self.speakers:
            for moves in (self.moves[agent], *self._heard_moves_by_speaker(agent).values()):
                words += count_words(" ".join(moves))
        return words

    def _evidence_sentences(self, agent: str) -> list[str]:
        """Return one sentence with the evidence that `agent` observes, or [] if it observes none.

        A speaker reads the parts of the evidence that it holds, its controller only their names.
        """
        if self.evidence is None:
            return []
        speaker = self._speaker_of.get(agent, agent)
        names = self.evidence.part_names_dealt_to(speaker, self.speakers, self.config.evidence == "split")
        if not names:
            return []
        if agent in self.speakers:
            return [f"you hold {' '.join(self.evidence.parts[name] for name in names)}"]
        return [f"{speaker} holds {' '.join(names)}"]

    def _heard_moves_by_speaker(self, listener: str) -> dict[str, list[str]]:
        """Return speaker -> moves of this speaker that `listener` has heard."""
        moves: dict[str, list[str]] = {}
        for speaker in self.speakers:
            if count := self._heard_counts.get((speaker, listener), 0):
                moves[speaker] = self.moves[speaker][:count]
        return moves
