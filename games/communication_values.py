"""Exact values of the communication game: what each joint choice earns if all speak perfectly, by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

import networkx as nx

from games.communication_graph import ACTIONS, connect, speaking_order
from games.evidence import DealtEvidence
from marl.types import Problem

JointChoice = tuple[str, ...]
"""An action for each agent, in ring order."""


class PlayFigures(NamedTuple):
    """Means over problems."""

    value: float
    """Reward of each agent."""
    success: float
    words: float
    """Spoken and heard."""
    edges: float


class PerfectTeam:
    """A team that says all that it knows of what counts, and nothing else; one round is played.

    What a joint choice earns depends on its graph alone, of which there are far fewer than joint choices.
    """

    def __init__(self, team: Sequence[str], split: bool, payment: Callable[[bool, int], float]) -> None:
        """`split`: each holds its own parts of the evidence, else all; `payment`: of success and words."""
        self.team, self._split, self._payment = tuple(team), split, payment
        self._graphs: dict[frozenset[tuple[str, str]], nx.DiGraph[str]] = {}
        self._graph_of: dict[JointChoice, frozenset[tuple[str, str]]] = {}
        for choice in product(ACTIONS, repeat=len(team)):
            graph = connect(dict(zip(team, choice, strict=True)))
            self._graph_of[choice] = frozenset(graph.edges)
            self._graphs.setdefault(self._graph_of[choice], graph)
        self._known: dict[tuple[object, ...], Mapping[JointChoice, PlayFigures]] = {}

    def earns(self, problem: Problem) -> Mapping[JointChoice, PlayFigures]:
        """Return joint choice -> what it comes to on a problem with evidence."""
        evidence, answer = DealtEvidence.of(problem), problem.answer
        # Problems that differ in the words themselves are worth the same.
        lengths = [len(text.split()) for text in (answer, *evidence.parts.values())]
        key = (*lengths, *evidence.parts, evidence.needs, evidence.respondent)
        if key not in self._known:
            played = {edges: self._play(graph, evidence, answer) for edges, graph in self._graphs.items()}
            self._known[key] = {choice: played[edges] for choice, edges in self._graph_of.items()}
        return self._known[key]

    def best(self, problem: Problem) -> JointChoice:
        """Return the first of the joint choices that earn most."""
        earns = self.earns(problem)
        return max(earns, key=lambda choice: earns[choice].value)

    def figures(self, problems: Sequence[Problem]) -> Mapping[str, PlayFigures]:
        """Return the figures of decision rules: the best one, the best that looks at no problem, each action, random.

        The best that looks at no problem always makes the same joint choice.
        """
        earned = [self.earns(problem) for problem in problems]
        constant = max(self._graph_of, key=lambda choice: fmean(earns[choice].value for earns in earned))
        rules = {"best_choices": [max(earns.values()) for earns in earned]}
        rules["best_constant"] = [earns[constant] for earns in earned]
        rules |= {action: [earns[(action,) * len(self.team)] for earns in earned] for action in ACTIONS}
        rules["random"] = [_mean(earns.values()) for earns in earned]
        return {rule: _mean(played) for rule, played in rules.items()}

    def _play(self, graph: nx.DiGraph[str], evidence: DealtEvidence, answer: str) -> PlayFigures:
        respondent, utterances, words = evidence.respondent_in(self.team), dict[str, str](), 0
        for speaker in (each for depth in speaking_order(graph, (respondent,)) for each in depth):
            heard = [utterances[other] for other in graph.predecessors(speaker)]
            held = evidence.held_by(speaker, self.team) if self._split else evidence.parts
            utterances[speaker] = evidence.utterance(evidence.known(held, heard, answer), answer)
            words += sum(len(text.split()) for text in (utterances[speaker], *heard))
        correct = utterances[respondent] == answer
        return PlayFigures(self._payment(correct, words), float(correct), words, graph.number_of_edges())


def _mean(played: Iterable[PlayFigures]) -> PlayFigures:
    return PlayFigures(*map(fmean, zip(*played, strict=True)))
