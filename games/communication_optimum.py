"""Exact outcomes of the communication game: enumeration of all joint choices of a team of perfect speakers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from statistics import fmean
from typing import NamedTuple

import networkx as nx

from marl.core.types import Problem
from marl.games.communication_graph import COMMUNICATION_ACTIONS, Edge, build_communication_graph, speaking_order
from marl.games.split_evidence import EvidenceInParts
from marl.text.word_count import count_words

JointAction = tuple[str, ...]
"""One communication action per agent, in ring order."""


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
    joint choice depends only on its graph, so each graph is played once.
    """

    def __init__(self, team: Sequence[str], split: bool, payment: Callable[[bool, int], float]) -> None:
        """Enumerate all joint choices of `team`.

        `split`: True if the evidence is dealt out among the agents; `payment` maps (success, words) to the reward.
        """
        self.team, self._split, self._payment = tuple(team), split, payment
        self._graphs: dict[frozenset[Edge], nx.DiGraph[str]] = {}
        self._graph_of: dict[JointAction, frozenset[Edge]] = {}
        for choice in product(COMMUNICATION_ACTIONS, repeat=len(team)):
            graph = build_communication_graph(dict(zip(team, choice, strict=True)))
            self._graph_of[choice] = frozenset(graph.edges)
            self._graphs.setdefault(self._graph_of[choice], graph)
        self._outcomes: dict[tuple[object, ...], Mapping[JointAction, MeanEpisodeOutcome]] = {}

    def outcome_by_joint_action(self, problem: Problem) -> Mapping[JointAction, MeanEpisodeOutcome]:
        """Return joint choice -> outcome of one round on `problem`, which must have evidence."""
        evidence, answer = EvidenceInParts.from_problem(problem), problem.answer
        # Outcomes depend on numbers of words alone, so problems with equal word counts share one cached result.
        lengths = [count_words(text) for text in (answer, *evidence.parts.values())]
        key = (*lengths, *evidence.parts, evidence.needs, evidence.respondent)
        if key not in self._outcomes:
            outcome_of: dict[frozenset[Edge], MeanEpisodeOutcome] = {}
            respondent = evidence.agent_that_must_answer(self.team)
            for edges, graph in self._graphs.items():
                utterances, words = dict[str, str](), 0
                for speaker in chain.from_iterable(speaking_order(graph, (respondent,))):
                    heard = [utterances[predecessor] for predecessor in graph.predecessors(speaker)]
                    parts = evidence.part_names_dealt_to(speaker, self.team, self._split)
                    utterances[speaker] = evidence.perfect_utterance(parts, heard, answer)
                    words += sum(count_words(text) for text in (utterances[speaker], *heard))
                correct = utterances[respondent] == answer
                outcome_of[edges] = MeanEpisodeOutcome(self._payment(correct, words), float(correct), words, len(edges))
            self._outcomes[key] = {choice: outcome_of[edges] for choice, edges in self._graph_of.items()}
        return self._outcomes[key]

    def mean_outcomes_of_decision_rules(self, problems: Sequence[Problem]) -> Mapping[str, MeanEpisodeOutcome]:
        """Return decision rule -> mean outcome on `problems`.

        Rules: `best_choices`, the best joint choice on every problem; `best_constant`, the best constant joint choice;
        every action for all agents; `random`, uniform choices.
        """
        tables = list(map(self.outcome_by_joint_action, problems))
        best = max(self._graph_of, key=lambda choice: fmean(table[choice].value for table in tables))
        constant_choices = {"best_constant": best}
        for action in COMMUNICATION_ACTIONS:
            constant_choices[action] = (action,) * len(self.team)
        means = {"best_choices": _mean_of_outcomes([max(table.values()) for table in tables])}
        for rule, choice in constant_choices.items():
            means[rule] = _mean_of_outcomes([table[choice] for table in tables])
        means["random"] = _mean_of_outcomes([_mean_of_outcomes(table.values()) for table in tables])
        return means


def _mean_of_outcomes(outcomes: Iterable[MeanEpisodeOutcome]) -> MeanEpisodeOutcome:
    return MeanEpisodeOutcome(*map(fmean, zip(*outcomes, strict=True)))
