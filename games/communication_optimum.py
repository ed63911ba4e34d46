"""Exact outcomes of the communication game: enumeration of all joint choices of a team of perfect speakers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marl.core.types import Problem
from marl.games.communication_graph import COMMUNICATION_ACTIONS, Edge, build_communication_graph, speaking_order
from marl.games.split_evidence import EvidenceInParts
from marl.text.word_count import count_words

JointAction = tuple[str, ...]
"""One communication action per agent, in ring order."""
SpeakersOfGraph = tuple[tuple[str, tuple[str, ...]], ...]
"""(speaker, agents that it hears) of each agent with an edge, in the order of speech."""


class MeanEpisodeOutcome(NamedTuple):
    """Mean outcome of a decision rule over several problems, or its outcome on one problem."""

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
    """

    def __init__(self, team: Sequence[str], split: bool, payment: Callable[[bool, int], float]) -> None:
        """Enumerate all joint choices of `team`.

        `split`: True if the evidence is dealt out among the agents; `payment` maps (success, words) to the reward.
        """
        self.team, self._split, self._payment = tuple(team), split, payment
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
        # Outcomes depend on numbers of words alone, so problems with equal word counts share one cached result.
        lengths = [count_words(text) for text in (answer, *evidence.parts.values())]
        key = (*lengths, *evidence.parts, evidence.needs, evidence.respondent)
        if key not in self._outcomes:
            self._outcomes[key] = self._play_all_graphs(evidence, answer)
        return self._outcomes[key]

    def _play_all_graphs(self, evidence: EvidenceInParts, answer: str) -> npt.NDArray[np.float64]:
        """Return the outcome of one round with each graph, [graph, field of `MeanEpisodeOutcome`]."""
        respondent = evidence.agent_that_must_answer(self.team)
        parts = {agent: evidence.part_names_dealt_to(agent, self.team, self._split) for agent in self.team}
        spoken: dict[tuple[str, tuple[str, ...]], tuple[str, int]] = {}
        """(speaker, texts that it hears) -> (its utterance, number of words spoken and heard by it)"""
        rows: list[MeanEpisodeOutcome] = []
        for speakers, edge_count in zip(self._speakers_by_graph, self._edge_counts, strict=True):
            utterances, words = dict[str, str](), 0
            # A respondent without an edge speaks, too: if it has edges, its second turn is skipped.
            for speaker, heard_agents in (*speakers, (respondent, ())):
                if speaker in utterances:
                    continue
                turn = speaker, tuple(utterances[agent] for agent in heard_agents)
                if turn not in spoken:
                    utterance = evidence.perfect_utterance(parts[speaker], turn[1], answer)
                    spoken[turn] = utterance, sum(map(count_words, (utterance, *turn[1])))
                utterances[speaker], turn_words = spoken[turn]
                words += turn_words
            correct = utterances[respondent] == answer
            rows.append(MeanEpisodeOutcome(self._payment(correct, words), float(correct), words, edge_count))
        return np.array(rows, dtype=np.float64)


def _mean_of_outcomes(outcomes: Sequence[Sequence[float]]) -> MeanEpisodeOutcome:
    return MeanEpisodeOutcome(*map(fmean, zip(*outcomes, strict=True)))
