"""Exact estimands of rules that subtract a baseline: peers, critics, greedy play, and trees of candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from itertools import pairwise
from math import sqrt

import networkx as nx
import numpy as np

from marl.commands.credit_check.enumeration import Decision, EnumeratedGame, History, PerTurn, Playthrough
from marl.commands.credit_check.estimands import Estimand
from marl.evaluation.game_tree import InformationState

_KEYS: Mapping[str, Callable[[Decision], Hashable]] = {
    "step": lambda _: "",
    "agent": lambda decision: decision.situation.agent,
    "start": lambda decision: (decision.cell.history.start, decision.situation.agent),
    "prompt": lambda decision: decision.situation,
    "prompt of start": lambda decision: (decision.cell.history.start, decision.situation),
}
"""Name -> key of a turn; turns with equal keys are peers, or have equal values."""


def compared(like: str, *, std: bool = False) -> Estimand:
    """Return for each turn the team's return minus its mean over the turn's peers.

    Args:
        like: name of the key that peers share, one of `_KEYS`.
        std: True divides by the standard deviation of the return over the peers.
    """
    key = _KEYS[like]

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        means, deviations = _moments(game, like)
        credit = []
        for decision in play.decisions:
            gap, deviation = play.team_return - means[key(decision)], deviations[key(decision)]
            if std:
                # Peers with equal returns have no deviation; the rules give them no credit.
                gap = gap / deviation if deviation > 1e-9 else 0.0
            credit.append(gap)
        return credit

    return per_turn


@cache
def _moments(game: EnumeratedGame, like: str) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Return key -> mean of the return over all turns with this key, and key -> standard deviation."""
    sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for play in game.plays:
        for decision in play.decisions:
            sums[_KEYS[like](decision)] += play.chance * np.array([1.0, play.team_return, play.team_return**2])
    means, deviations = {}, {}
    for key, (mass, total, squares) in sums.items():
        means[key] = float(total / mass)
        # Rounding can make a variance of zero negative.
        deviations[key] = sqrt(max(float(squares / mass) - means[key] ** 2, 0.0))
    return means, deviations


def chained(lam: float) -> Estimand:
    """Return GAE on the chain of the team's turns: A_k = sum over l of lam^l delta_{k+l}, delta_k = V_{k+1} - V_k.

    V is the mean return given the agent's prompt, and the return itself after the last turn.
    """

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        means, _ = _moments(game, "prompt")
        deltas = np.diff([means[decision.situation] for decision in play.decisions] + [play.team_return])
        return [float(deltas[k:] @ lam ** np.arange(len(deltas) - k)) for k in range(len(deltas))]

    return per_turn


def temporal(lam: float, *, whole: bool = True) -> Estimand:
    """Return GAE on the graph of turns: A = (I - lam W)^-1 (r + W V - V), a linear system over the turns of a play.

    W and r are those of `_successors`, V those of `lambda_return_values`.
    """

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        prompt_values = lambda_return_values(game, lam, whole)
        weights, rewards = _successors(play, whole)
        values = np.array([prompt_values[decision.situation] for decision in play.decisions])
        return np.linalg.solve(np.eye(len(values)) - lam * weights, rewards + weights @ values - values).tolist()

    return per_turn


def _successors(play: Playthrough, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights W [turns, turns] of successors, and the rewards r [turns].

    W[u, v] is positive if v is a next reader of u: an edge in the transitive reduction of the reading graph, in which
    an agent's turns follow one another. With `whole` the weights of the next readers of u sum to 1, and every leaf turn
    gets the full return of the team. Otherwise the weights of the turns before v sum to 1, and the leaf turns get equal
    parts of the return.
    """
    turns = [turn.id for turn in play.trajectory.turns]
    graph = nx.DiGraph(play.trajectory.graph.edges)
    graph.add_nodes_from(turns)
    for agent in play.trajectory.deal.seats:
        graph.add_edges_from(pairwise([turn.id for turn in play.trajectory.turns if turn.agent == agent]))
    weights = nx.to_numpy_array(nx.transitive_reduction(graph), nodelist=turns)
    leaves = weights.sum(1) == 0
    weights /= np.maximum(weights.sum(int(whole), keepdims=True), 1)
    return weights, leaves * play.team_return / (1 if whole else leaves.sum())


@cache
def lambda_return_values(game: EnumeratedGame, lam: float, whole: bool) -> dict[Hashable, float]:
    """Return the fixed point V: the value of a prompt is the mean lambda-return, computed with V, of its turns."""
    plays = [(play, *_successors(play, whole)) for play in game.plays]
    values: dict[Hashable, float] = defaultdict(float)
    # Values depend on later turns only, so every iteration makes one more layer of turns exact.
    for _ in range(max(len(play.decisions) for play in game.plays) + 1):
        sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for play, weights, rewards in plays:
            present = np.array([values[decision.situation] for decision in play.decisions])
            returns = np.linalg.solve(np.eye(len(present)) - lam * weights, rewards + (1 - lam) * weights @ present)
            for decision, value in zip(play.decisions, returns, strict=True):
                sums[decision.situation] += play.chance * np.array([1.0, value])
        values = defaultdict(float, {prompt: float(total / mass) for prompt, (mass, total) in sums.items()})
    return values


def greedy(game: EnumeratedGame, play: Playthrough) -> PerTurn:
    """Return the team's return minus its expectation if every agent makes its most likely move."""
    best = {situation: max(moves, key=moves.__getitem__) for situation, moves in game.strategy.items()}
    baseline = game.expected(lambda situation, _: {best[situation]: 1.0}, play.first)
    return [play.team_return - baseline] * len(play.decisions)


def candidates(count: int) -> Estimand:
    """Return Q(h, a) minus its mean over the candidates of all turns with the same prompt and start.

    At each turn of the tree `count` candidates are sampled, and the one with the highest return is continued.
    """

    def per_turn(game: EnumeratedGame, play: Playthrough) -> PerTurn:
        means = _candidate_means(game, count)
        credit = []
        for decision in play.decisions:
            mean = means.get((decision.cell.history.start, decision.situation), 0.0)
            credit.append(game.value(decision.cell.after) - mean)
        return credit

    return per_turn


@cache
def _candidate_means(game: EnumeratedGame, count: int) -> dict[Hashable, float]:
    """Return (start, situation) -> mean value of the histories in this situation that the tree continues."""
    terms: dict[Hashable, list[float]] = defaultdict(list)
    chances: dict[Hashable, list[float]] = defaultdict(list)
    for history, (situation, chance) in _continued(game, count).items():
        terms[history.start, situation].append(game.value(history) * chance)
        chances[history.start, situation].append(chance)
    return {key: sum(terms[key]) / sum(chances[key]) for key in terms}


def _continued(game: EnumeratedGame, count: int) -> dict[History, tuple[InformationState, float]]:
    """Return history -> (its situation, the probability that a tree of candidates continues it).

    The best of `count` candidates has the return r with probability F(r)^count - F(r-)^count, where F is the
    distribution function of returns. Candidates with equal returns are equally likely to be chosen.
    """
    outcomes: dict[History, dict[float, dict[History, float]]] = defaultdict(dict)
    situations: dict[History, InformationState] = {}
    reached: dict[History, float] = defaultdict(float)
    for play in game.plays:
        reached[play.first] += play.chance
        for decision in play.decisions:
            situations[decision.cell.history] = decision.situation
            ties = outcomes[decision.cell.history].setdefault(play.team_return, defaultdict(float))
            ties[decision.cell.after] += play.chance
    # Shorter histories first: the probability of a history is complete before those of its continuations need it.
    for history in sorted(situations, key=lambda history: len(history.moves)):
        by_return = outcomes[history]
        total, below = sum(sum(after.values()) for after in by_return.values()), 0.0
        for team_return in sorted(by_return):
            mass = sum(by_return[team_return].values())
            best = ((below + mass) / total) ** count - (below / total) ** count
            below += mass
            for after, chance in by_return[team_return].items():
                reached[after] += reached[history] * best * chance / mass
    return {history: (situation, reached[history]) for history, situation in situations.items()}
