"""Exact outcomes of the communication game: enumeration of all joint choices of a team of perfect speakers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from statistics import fmean
from typing import NamedTuple

import networkx as nx

from marl.core.types import Problem
from marl.games.communication_graph import COMMUNICATION_ACTIONS, connect, speaking_order
from marl.games.split_evidence import SplitEvidence

JointAction = tuple[str, ...]
"""One action per agent, in ring order."""


class OutcomeMeans(NamedTuple):
    """Mean outcome of a decision rule over problems, or the outcome on one problem."""

    value: float
    """Reward of each agent."""
    success: float
    words: float
    """Number of words spoken and heard."""
    edges: float


class PerfectTeam:
    """A team of perfect speakers in a game of one round: each says the answer, or all needed parts it has.

    The outcome of a joint choice depends only on its graph, and there are far fewer graphs than joint choices.
    """

    def __init__(self, team: Sequence[str], split: bool, payment: Callable[[bool, int], float]) -> None:
        """`split`: True if the evidence is dealt out; `payment` maps (success, words) to the reward."""
        self.team, self._split, self._payment = tuple(team), split, payment
        self._graphs: dict[frozenset[tuple[str, str]], nx.DiGraph[str]] = {}
        self._graph_of: dict[JointAction, frozenset[tuple[str, str]]] = {}
        for choice in product(COMMUNICATION_ACTIONS, repeat=len(team)):
            graph = connect(dict(zip(team, choice, strict=True)))
            self._graph_of[choice] = frozenset(graph.edges)
            self._graphs.setdefault(self._graph_of[choice], graph)
        self._outcomes: dict[tuple[object, ...], Mapping[JointAction, OutcomeMeans]] = {}

    def outcomes(self, problem: Problem) -> Mapping[JointAction, OutcomeMeans]:
        """Return joint choice -> outcome on a problem with evidence."""
        evidence, answer = SplitEvidence.of(problem), problem.answer
        # Only the number of words has a cost, so problems with texts of equal length share their outcomes.
        lengths = [len(text.split()) for text in (answer, *evidence.parts.values())]
        key = (*lengths, *evidence.parts, evidence.needs, evidence.respondent)
        if key not in self._outcomes:
            outcome_of = {edges: self._play(graph, evidence, answer) for edges, graph in self._graphs.items()}
            self._outcomes[key] = {choice: outcome_of[edges] for choice, edges in self._graph_of.items()}
        return self._outcomes[key]

    def best(self, problem: Problem) -> JointAction:
        """Return the joint choice of highest reward (the first in a tie)."""
        outcomes = self.outcomes(problem)
        return max(outcomes, key=lambda choice: outcomes[choice].value)

    def evaluate_decision_rules(self, problems: Sequence[Problem]) -> Mapping[str, OutcomeMeans]:
        """Return decision rule -> mean outcome on `problems`.

        Rules: `best_choices`, the best joint choice on every problem; `best_constant`, the best constant joint choice;
        every action for all agents; `random`, uniform choices.
        """
        tables = [self.outcomes(problem) for problem in problems]
        constant = max(self._graph_of, key=lambda choice: fmean(table[choice].value for table in tables))
        means = {
            "best_choices": _mean([max(table.values()) for table in tables]),
            "best_constant": _mean([table[constant] for table in tables]),
        }
        for action in COMMUNICATION_ACTIONS:
            means[action] = _mean([table[(action,) * len(self.team)] for table in tables])
        means["random"] = _mean([_mean(table.values()) for table in tables])
        return means

    def _play(self, graph: nx.DiGraph[str], evidence: SplitEvidence, answer: str) -> OutcomeMeans:
        """Return the outcome of one round on `graph`."""
        respondent, utterances, words = evidence.respondent_in(self.team), dict[str, str](), 0
        for speaker in chain.from_iterable(speaking_order(graph, (respondent,))):
            heard = [utterances[predecessor] for predecessor in graph.predecessors(speaker)]
            parts = evidence.items_of(speaker, self.team) if self._split else evidence.parts
            utterances[speaker] = evidence.utterance(evidence.inferable(parts, heard, answer), answer)
            words += sum(len(text.split()) for text in (utterances[speaker], *heard))
        correct = utterances[respondent] == answer
        return OutcomeMeans(self._payment(correct, words), float(correct), words, graph.number_of_edges())


def _mean(outcomes: Iterable[OutcomeMeans]) -> OutcomeMeans:
    return OutcomeMeans(*map(fmean, zip(*outcomes, strict=True)))
