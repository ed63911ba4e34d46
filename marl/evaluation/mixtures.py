"""Mixtures of strategies as one strategy, for averages over a run and for pools of players."""

from __future__ import annotations

import math
from collections.abc import Sequence

from marl.evaluation.game_tree import GameTree, Situation, Strategy, own_reach


def mixture(tree: GameTree, strategies: Sequence[Strategy], weights: Sequence[float]) -> Strategy:
    """Return the behaviour strategy that plays like drawing one strategy at the start and keeping to it.

    Every agent draws for itself. In a situation the strategies are averaged by weight times the probability that their
    own moves lead there (Kuhn 1953; Heinrich, Lanctot & Silver 2015), so that against any opponent the mixture is worth
    the weighted mean of what they are worth. Where none leads, by weight alone. Assumes perfect recall.

    Args:
        tree: the game, whose situations every strategy has.
        strategies: at least one; what is missing to 1 in a situation goes to the game's illegal-move rule.
        weights: one for each strategy, none below 0; they are divided by their sum.
    """
    average = RunningMixture(tree)
    for strategy, weight in zip(strategies, weights, strict=True):
        average.add(strategy, weight)
    return average.strategy()


class RunningMixture:
    """The mixture of all strategies added so far; its size does not depend on their number."""

    def __init__(self, tree: GameTree) -> None:
        self._tree = tree
        zeros = {situation: dict.fromkeys(request.options or (), 0.0) for situation, request in tree.requests.items()}
        self._reached = dict.fromkeys(zeros, 0.0)
        self._sums = {situation: dict(moves) for situation, moves in zeros.items()}
        self._plain = zeros
        self._weight = 0.0

    def add(self, strategy: Strategy, weight: float = 1.0) -> None:
        """Add a strategy with a weight.

        Raises:
            ValueError: if the weight is negative or not finite.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight {weight}: a strategy's weight in a mixture is a number of at least 0")
        reached = own_reach(self._tree, strategy)
        self._weight += weight
        for situation, moves in self._sums.items():
            share = weight * reached[situation]
            self._reached[situation] += share
            for move in moves:
                probability = strategy[situation].get(move, 0.0)
                moves[move] += share * probability
                self._plain[situation][move] += weight * probability

    def strategy(self) -> Strategy:
        """Return the mixture.

        Raises:
            ValueError: if no strategy with a weight above 0 was added.
        """
        if not self._weight:
            raise ValueError("a mixture needs a strategy whose weight is above 0")
        return {situation: self._mixed(situation) for situation in self._sums}

    def _mixed(self, situation: Situation) -> dict[str, float]:
        if reached := self._reached[situation]:
            return {move: total / reached for move, total in self._sums[situation].items()}
        return {move: total / self._weight for move, total in self._plain[situation].items()}
