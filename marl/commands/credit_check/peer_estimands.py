"""Exact estimands of rules that subtract a baseline: peers, critics, greedy play, and trees of candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from itertools import pairwise
from math import sqrt

import networkx as nx
import numpy as np

from marl.commands.credit_check.enumeration import (
    AgentDecision,
    CreditPerTurn,
    EnumeratedGame,
    MoveHistory,
    Playthrough,
)
from marl.commands.credit_check.estimands import Estimand
from marl.evaluation.game_tree import InformationState

_PEER_KEYS: Mapping[str, Callable[[AgentDecision], Hashable]] = {
    "step": lambda _: "",
    "agent": lambda decision: decision.situation.agent,
    "start": lambda decision: (decision.cell.history.start, decision.situation.agent),
    "prompt": lambda decision: decision.situation,
    "prompt of start": lambda decision: (decision.cell.history.start, decision.situation),
}
"""Name of a peer group -> function that returns a turn's key. Turns with equal keys are peers."""


def peer_advantage_estimand(peer_group: str, *, divide_by_std: bool = False) -> Estimand:
    """Return the estimand: the team's return minus its mean over the turn's peers.

    Args:
        peer_group: name of the peer group, a key of `_PEER_KEYS`.
        divide_by_std: True divides by the standard deviation of the return over the peers.
    """
    key = _PEER_KEYS[peer_group]

    def peer_advantage_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        means, deviations = _peer_means_and_deviations(game, peer_group)
        credit = []
        for decision in play.decisions:
            gap, deviation = play.team_return - means[key(decision)], deviations[key(decision)]
            if divide_by_std:
                # If all peers have equal returns, the standard deviation is 0, and the rules give no credit.
                gap = gap / deviation if deviation > 1e-9 else 0.0
            credit.append(gap)
        return credit

    return peer_advantage_credit_per_turn


@cache
def _peer_means_and_deviations(
    game: EnumeratedGame, peer_group: str
) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """Return two mappings of a peer key: to the mean and to the standard deviation of the peers' returns."""
    sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for play in game.plays:
        for decision in play.decisions:
            sums[_PEER_KEYS[peer_group](decision)] += play.probability * np.array(
                [1.0, play.team_return, play.team_return**2]
            )
    means, deviations = {}, {}
    for key, (mass, total, squares) in sums.items():
        means[key] = float(total / mass)
        # Rounding can make a variance of zero negative.
        deviations[key] = sqrt(max(float(squares / mass) - means[key] ** 2, 0.0))
    return means, deviations


def chain_gae_estimand(lam: float) -> Estimand:
    """Return GAE on the chain of the team's turns: A_k = sum over l of lam^l delta_{k+l}, delta_k = V_{k+1} - V_k.

    V is the mean return given the agent's prompt, and the return itself after the last turn.
    """

    def chain_gae_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        means, _ = _peer_means_and_deviations(game, "prompt")
        deltas = np.diff([means[decision.situation] for decision in play.decisions] + [play.team_return])
        return [float(deltas[k:] @ lam ** np.arange(len(deltas) - k)) for k in range(len(deltas))]

    return chain_gae_credit_per_turn


def graph_gae_estimand(lam: float, *, full_leaf_returns: bool = True) -> Estimand:
    """Return GAE on the graph of turns: A = (I - lam W)^-1 (r + W V - V), a linear system over the turns of a play.

    W and r come from `_successor_weights_and_rewards`, V from `lambda_return_values`.
    """

    def graph_gae_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        prompt_values = lambda_return_values(game, lam, full_leaf_returns)
        weights, rewards = _successor_weights_and_rewards(play, full_leaf_returns)
        values = np.array([prompt_values[decision.situation] for decision in play.decisions])
        return np.linalg.solve(np.eye(len(values)) - lam * weights, rewards + weights @ values - values).tolist()

    return graph_gae_credit_per_turn


def _successor_weights_and_rewards(play: Playthrough, full_leaf_returns: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights W [turns, turns] of each turn's next readers, and the rewards r [turns].

    W[u, v] is positive if v is a next reader of u: an edge in the transitive reduction of the reading graph, in which
    an agent's turns follow one another. With `full_leaf_returns` the weights of the next readers of u sum to 1, and
    every leaf turn gets the full return of the team. Otherwise the weights of the turns before v sum to 1, and the leaf
    turns get equal parts of the return.
    """
    turns = [turn.id for turn in play.trajectory.turns]
    graph = nx.DiGraph(play.trajectory.graph.edges)
    graph.add_nodes_from(turns)
    for agent in play.trajectory.deal.seats:
        graph.add_edges_from(pairwise([turn.id for turn in play.trajectory.turns if turn.agent == agent]))
    weights = nx.to_numpy_array(nx.transitive_reduction(graph), nodelist=turns)
    leaves = weights.sum(1) == 0
    weights /= np.maximum(weights.sum(int(full_leaf_returns), keepdims=True), 1)
    return weights, leaves * play.team_return / (1 if full_leaf_returns else leaves.sum())


@cache
def lambda_return_values(game: EnumeratedGame, lam: float, full_leaf_returns: bool) -> dict[Hashable, float]:
    """Return the fixed point V: the value of a prompt is the mean lambda-return, computed with V, of its turns."""
    plays = [(play, *_successor_weights_and_rewards(play, full_leaf_returns)) for play in game.plays]
    values: dict[Hashable, float] = defaultdict(float)
    # A value depends on later turns only, so each iteration makes the values one turn further from the end exact.
    for _ in range(max(len(play.decisions) for play in game.plays) + 1):
        sums: dict[Hashable, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for play, weights, rewards in plays:
            present = np.array([values[decision.situation] for decision in play.decisions])
            returns = np.linalg.solve(np.eye(len(present)) - lam * weights, rewards + (1 - lam) * weights @ present)
            for decision, value in zip(play.decisions, returns, strict=True):
                sums[decision.situation] += play.probability * np.array([1.0, value])
        values = defaultdict(float, {prompt: float(total / mass) for prompt, (mass, total) in sums.items()})
    return values


def return_minus_greedy_return(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
    """Return, for every turn, the team's return minus its expectation if every agent makes its most likely move."""
    best = {situation: max(moves, key=moves.__getitem__) for situation, moves in game.strategy.items()}
    baseline = game.expected_return(lambda situation, _: {best[situation]: 1.0}, play.initial_history)
    return [play.team_return - baseline] * len(play.decisions)


def q_minus_peer_mean_estimand(candidate_count: int) -> Estimand:
    """Return the estimand of a tree search: Q(h, a) minus the mean of Q over turns with the same prompt and start.

    At each turn the tree samples `candidate_count` moves, and continues with the move of the highest return.
    """

    def q_minus_peer_mean_credit_per_turn(game: EnumeratedGame, play: Playthrough) -> CreditPerTurn:
        means = _mean_values_of_continued_histories(game, candidate_count)
        credit = []
        for decision in play.decisions:
            mean = means.get((decision.cell.history.start, decision.situation), 0.0)
            credit.append(game.history_value(decision.cell.history_after_move) - mean)
        return credit

    return q_minus_peer_mean_credit_per_turn


@cache
def _mean_values_of_continued_histories(game: EnumeratedGame, candidate_count: int) -> dict[Hashable, float]:
    """Return (start, information state) -> mean value of the histories in this state that a tree search continues.

    The best of n `candidate_count` has the return r with probability F(r)^n - F(r-)^n, where F is the
    distribution function of returns. Candidates with equal returns are equally likely to be chosen.
    """
    outcomes: dict[MoveHistory, dict[float, dict[MoveHistory, float]]] = defaultdict(dict)
    situations: dict[MoveHistory, InformationState] = {}
    reached: dict[MoveHistory, float] = defaultdict(float)
    for play in game.plays:
        reached[play.initial_history] += play.probability
        for decision in play.decisions:
            situations[decision.cell.history] = decision.situation
            ties = outcomes[decision.cell.history].setdefault(play.team_return, defaultdict(float))
            ties[decision.cell.history_after_move] += play.probability
    # Histories are visited by length, because a history's probability must be known before those that extend it.
    for history in sorted(situations, key=lambda history: len(history.moves)):
        by_return = outcomes[history]
        total, below = sum(sum(after.values()) for after in by_return.values()), 0.0
        for team_return in sorted(by_return):
            mass = sum(by_return[team_return].values())
            best = ((below + mass) / total) ** candidate_count - (below / total) ** candidate_count
            below += mass
            for after, chance in by_return[team_return].items():
                reached[after] += reached[history] * best * chance / mass
    terms: dict[Hashable, list[float]] = defaultdict(list)
    chances: dict[Hashable, list[float]] = defaultdict(list)
    for history, situation in situations.items():
        terms[history.start, situation].append(game.history_value(history) * reached[history])
        chances[history.start, situation].append(reached[history])
    return {key: sum(terms[key]) / sum(chances[key]) for key in terms}
