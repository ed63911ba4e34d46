"""Mixtures of strategies as one behaviour strategy, for averages over a run and for pools of players."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marl.evaluation.game_tree import GameTree, InformationState, Strategy, own_reach_probabilities


def mix_strategies(tree: GameTree, strategies: Sequence[Strategy], weights: Sequence[float]) -> Strategy:
    """Return the behaviour strategy equivalent to drawing one strategy per agent before the game and playing it.

    In each information state the strategies are averaged with their weight times their own reach probability (Kuhn
    1953; Heinrich, Lanctot & Silver 2015), so the value of the mixture against any opponent is the weighted mean of
    the strategies' values. In states that no strategy reaches, the weights alone count. Assumes perfect recall.

    Args:
        tree: the game; every strategy covers all its information states.
        strategies: at least one strategy.
        weights: one weight per strategy, at least 0; the weights are normalised to the sum 1.
    """
    average = RunningStrategyMixture(tree)
    for strategy, weight in zip(strategies, weights, strict=True):
        average.add_strategy(strategy, weight)
    return average.mean_strategy()


class RunningStrategyMixture:
    """Mixture of all strategies added so far, in memory that does not grow with their number."""

    def __init__(self, tree: GameTree) -> None:
        self._tree = tree
        self._reach_totals = dict.fromkeys(tree.requests, 0.0)
        self._reach_weighted: dict[InformationState, dict[str, float]] = {}
        """Information state -> move -> sum of weight * reach probability * probability."""
        self._unweighted: dict[InformationState, dict[str, float]] = {}
        """Information state -> move -> sum of weight * probability."""
        for situation, request in tree.requests.items():
            self._reach_weighted[situation] = dict.fromkeys(request.options or (), 0.0)
            self._unweighted[situation] = dict.fromkeys(request.options or (), 0.0)
        self._total_weight = 0.0

    def add_strategy(self, strategy: Strategy, weight: float = 1.0) -> None:
        """Add `strategy` to the mixture.

        Raises:
            ValueError: if the weight is negative or not finite.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight {weight}: a strategy's weight in a mixture is a number of at least 0")
        reach = own_reach_probabilities(self._tree, strategy)
        self._total_weight += weight
        for situation, moves in self._reach_weighted.items():
            reach_weight = weight * reach[situation]
            self._reach_totals[situation] += reach_weight
            for move in moves:
                probability = strategy[situation].get(move, 0.0)
                moves[move] += reach_weight * probability
                self._unweighted[situation][move] += weight * probability

    def mean_strategy(self) -> Strategy:
        """Return the mixture of the strategies added so far.

        Raises:
            ValueError: if no strategy with a weight above 0 was added.
        """
        if not self._total_weight:
            raise ValueError("a mixture needs a strategy whose weight is above 0")
        mixed: dict[InformationState, dict[str, float]] = {}
        for situation, reach_weighted in self._reach_weighted.items():
            sums, total = reach_weighted, self._reach_totals[situation]
            if not total:
                # If no strategy's own moves lead to this state, the strategies are averaged by their weights alone.
                sums, total = self._unweighted[situation], self._total_weight
            mixed[situation] = {move: weighted / total for move, weighted in sums.items()}
        return mixed
