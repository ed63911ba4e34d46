"""Exact outcomes of the communication game: enumeration of all joint choices of a team of perfect speakers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, product
from math import fsum
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marl.core.types import Problem
from marl.games.communication_graph import COMMUNICATION_ACTIONS, Edge, build_communication_graph, speaking_order
from marl.games.split_evidence import NOTHING, EvidenceInParts
from marl.text.word_count import count_words

JointAction = tuple[str, ...]
"""One communication action per agent, in ring order."""
SpeakersOfGraph = tuple[tuple[str, tuple[str, ...]], ...]
"""(speaker, agents that it hears) of each agent with an edge, in the order of speech."""


class MeanEpisodeOutcome(NamedTuple):
    """Mean outcome of a decision rule over several problems, or its (expected) outcome on one problem."""

    value: float
    """Mean reward of each agent."""
    success: float
    """Fraction of problems with a right answer."""
    words: float
    """Mean number of words spoken and heard by all agents."""
    edges: float
    """Mean number of edges of the communication graph."""


class PerfectSpeakerTeam:
    """Team of perfect speakers in one round of the communication game.

    A speaker says the answer if it knows all needed parts, else the needed parts that it knows. The outcome of a
    joint choice depends only on its graph, so each graph is played once. An utterance depends only on the speaker and
    the texts that it hears, so each is made once per problem, not once per graph: six agents have 17,277 graphs.
    Under noise, the outcome of a graph is its expectation over all combinations of lost words.
    """

    def __init__(
        self, team: Sequence[str], split: bool, payment: Callable[[bool, int], float], noise: float = 0.0
    ) -> None:
        """Enumerate all joint choices of `team`.

        `split`: True if the evidence is dealt out among the agents; `payment` maps (success, words) to the reward;
        `noise`: probability that an utterance loses a word.
        """
        self.team, self._split, self._payment, self._noise = tuple(team), split, payment, noise
        self._joint_actions: list[JointAction] = list(product(COMMUNICATION_ACTIONS, repeat=len(team)))
        graph_index_by_edges: dict[frozenset[Edge], int] = {}
        self._speakers_by_graph: list[SpeakersOfGraph] = []
        """Graphs in the order of the first joint choice that leads to each."""
        self._edge_counts: list[int] = []
        self._graph_indices: list[int] = []
        """Index of the graph of each joint choice."""
        for choice in self._joint_actions:
            graph = build_communication_graph(dict(zip(self.team, choice, strict=True)))
            edges = frozenset(graph.edges)
            if edges not in graph_index_by_edges:
                graph_index_by_edges[edges] = len(self._speakers_by_graph)
                order = chain.from_iterable(speaking_order(graph, ()))
                self._speakers_by_graph.append(tuple((agent, tuple(graph.predecessors(agent))) for agent in order))
                self._edge_counts.append(len(edges))
            self._graph_indices.append(graph_index_by_edges[edges])
        self._outcomes: dict[tuple[object, ...], npt.NDArray[np.float64]] = {}

    def outcome_by_joint_action(self, problem: Problem) -> Mapping[JointAction, MeanEpisodeOutcome]:
        """Return joint choice -> outcome of one round on `problem`, which must have evidence."""
        outcomes = [MeanEpisodeOutcome(*row) for row in self._outcome_by_graph(problem).tolist()]
        return dict(zip(self._joint_actions, map(outcomes.__getitem__, self._graph_indices), strict=True))

    def best_joint_action(self, problem: Problem) -> JointAction:
        """Return the joint choice of the highest value on `problem`; the first one among equally good choices."""
        best_graph = int(self._outcome_by_graph(problem)[:, 0].argmax())
        return self._joint_actions[self._graph_indices.index(best_graph)]

    def mean_outcomes_of_decision_rules(self, problems: Sequence[Problem]) -> Mapping[str, MeanEpisodeOutcome]:
        """Return decision rule -> mean outcome on `problems`.

        Rules: `best_choices`, the best joint choice on every problem; `best_constant`, the best constant joint choice;
        every action for all agents; `random`, uniform choices.
        """
        tables = list(map(self._outcome_by_graph, problems))
        # `fmean` rounds exactly, so that choices of equal value stay equal, and the first of them is taken.
        mean_values = list(map(fmean, np.stack([table[:, 0] for table in tables], axis=1).tolist()))
        graph_by_rule = {"best_constant": mean_values.index(max(mean_values))}
        for action in COMMUNICATION_ACTIONS:
            graph_by_rule[action] = self._graph_indices[self._joint_actions.index((action,) * len(self.team))]
        means = {"best_choices": _mean_of_outcomes([max(map(tuple, table.tolist())) for table in tables])}
        for rule, graph in graph_by_rule.items():
            means[rule] = _mean_of_outcomes([table[graph].tolist() for table in tables])
        choice_counts = np.bincount(self._graph_indices)
        means["random"] = _mean_of_outcomes([np.average(table, 0, choice_counts).tolist() for table in tables])
        return means

    def _outcome_by_graph(self, problem: Problem) -> npt.NDArray[np.float64]:
        """Return the outcome of one round on `problem` with each graph, [graph, field of `MeanEpisodeOutcome`]."""
        evidence, answer = EvidenceInParts.from_problem(problem), problem.answer
        # Outcomes depend on numbers of words and on which words are equal, not on the words themselves. Problems that
        # agree in these share one cached result.
        texts = (answer, *evidence.parts.values())
        number_of_word: dict[str, int] = {}
        words = [tuple([number_of_word.setdefault(word, len(number_of_word)) for word in t.split()]) for t in texts]
        key = (*map(count_words, texts), *words, *evidence.parts, evidence.needs, evidence.respondent)
        if key not in self._outcomes:
            self._outcomes[key] = self._play_all_graphs(evidence, answer)
        return self._outcomes[key]

    def _play_all_graphs(self, evidence: EvidenceInParts, answer: str) -> npt.NDArray[np.float64]:
        """Return the outcome of one round with each graph, [graph, field of `MeanEpisodeOutcome`]."""
        respondent = evidence.agent_that_must_answer(self.team)
        parts = {agent: evidence.part_names_dealt_to(agent, self.team, self._split) for agent in self.team}

        @cache
        def play_turn(speaker: str, heard_texts: tuple[str, ...]) -> list[tuple[float, str, int]]:
            """Return (probability, utterance, words spoken and heard) of each way in which noise may alter a turn."""
            utterance = evidence.perfect_utterance(parts[speaker], heard_texts, answer)
            heard_words = sum(map(count_words, heard_texts))
            return [(p, text, heard_words + count_words(text)) for p, text in noisy_utterances(utterance, self._noise)]

        rows: list[MeanEpisodeOutcome] = []
        for speakers, edge_count in zip(self._speakers_by_graph, self._edge_counts, strict=True):
            # A respondent without an edge speaks, too.
            turns = speakers if any(agent == respondent for agent, _ in speakers) else (*speakers, (respondent, ()))
            rounds = _play_graph(turns, play_turn)
            correct = [played.utterances[respondent] == answer for played in rounds]
            value = fsum(
                r.probability * self._payment(right, r.words) for r, right in zip(rounds, correct, strict=True)
            )
            success = fsum(r.probability for r, right in zip(rounds, correct, strict=True) if right)
            words = fsum(r.probability * r.words for r in rounds)
            rows.append(MeanEpisodeOutcome(value, success, words, edge_count))
        return np.array(rows, dtype=np.float64)


class _PlayedRound(NamedTuple):
    """A way in which noise may alter a round with a given graph."""

    probability: float
    utterances: Mapping[str, str]
    """Speaker -> its utterance."""
    words: int
    """Number of words spoken and heard by all agents."""


def _play_graph(
    turns: SpeakersOfGraph, play_turn: Callable[[str, tuple[str, ...]], Sequence[tuple[float, str, int]]]
) -> list[_PlayedRound]:
    """Return all ways in which noise may alter a round with the speakers `turns`.

    `play_turn` maps a speaker and the texts that it hears to (probability, utterance, words spoken and heard).
    """
    rounds = [_PlayedRound(1.0, {}, 0)]
    for speaker, heard_agents in turns:
        extended: list[_PlayedRound] = []
        for probability, utterances, words in rounds:
            for share, text, turn_words in play_turn(speaker, tuple([utterances[agent] for agent in heard_agents])):
                extended.append(_PlayedRound(probability * share, {**utterances, speaker: text}, words + turn_words))
        rounds = extended
    return rounds


def noisy_utterances(utterance: str, noise: float) -> list[tuple[float, str]]:
    """Return (probability, text) of what may be left of `utterance`: with probability `noise` it loses a word, drawn at
    random, and an utterance of a single word leaves `none` (erasure channel)."""
    words = utterance.split()
    probability_of = {utterance: 1 - noise}
    for index in range(len(words) if noise else 0):
        shorter = " ".join([*words[:index], *words[index + 1 :]]) or NOTHING
        probability_of[shorter] = probability_of.get(shorter, 0.0) + noise / len(words)
    return [(probability, text) for text, probability in probability_of.items()]


def _mean_of_outcomes(outcomes: Sequence[Sequence[float]]) -> MeanEpisodeOutcome:
    return MeanEpisodeOutcome(*map(fmean, zip(*outcomes, strict=True)))
