"""Nodes of a search tree at which several agents move at once: each chooses by regret matching.

The tree is that of Lanctot, Lisy and Winands 2013, "Monte Carlo tree search in simultaneous move games with
applications to Goofspiel": a node stores the mean return of every joint move. Unlike in the paper, regrets are computed
from all these means and the strategies of the others instead of one sample, so that exploration does not bias them, by
regret matching+ with linear averaging (Tammelin 2014, arXiv 1407.5042). In zero-sum games the average strategies
approach an equilibrium.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from marl.search.positions import SearchPosition
from marl.search.tree import TreeNode

_EXPLORATION = 0.2
"""Probability with which an agent explores a uniformly drawn move in a simulation."""
JointMove = tuple[int, ...]
"""Index of the move of each agent that moves, in seat order."""


class JointNode:
    """A position in the tree at which several agents move at once, with the statistics of their joint moves."""

    def __init__(self, position: SearchPosition, values: Sequence[float]) -> None:
        """Create a node without visits. `values` holds each agent's return from the root, evaluated at `position`."""
        self.position, self.values = position, values
        self.children: dict[JointMove, TreeNode[SearchPosition] | JointNode] = {}
        shape = tuple(len(moves) for _, moves in position.joint)
        self._visits = np.zeros(shape)
        self._means = [np.full(shape, values[agent]) for agent, _ in position.joint]
        """Mean return of each agent that moves after each joint move; the node's own evaluation without a visit."""
        self._regrets = [np.zeros(count) for count in shape]
        self._strategies = [np.full(count, 1 / count) for count in shape]
        self._strategy_sums = [np.zeros(count) for count in shape]

    def draw_joint_move(self, rng: random.Random) -> JointMove:
        """Draw a move for each agent from its strategy, or with the probability of exploration a uniform one."""
        chosen: list[int] = []
        for strategy in self._strategies:
            if rng.random() < _EXPLORATION:
                chosen.append(rng.randrange(len(strategy)))
            else:
                chosen.append(rng.choices(range(len(strategy)), strategy.tolist())[0])
        return tuple(chosen)

    def child_after(self, joint_move: JointMove) -> SearchPosition:
        """Return the position after `joint_move`."""
        moves = [menu[index] for (_, menu), index in zip(self.position.joint, joint_move, strict=True)]
        return self.position.position_after(*moves)

    def update(self, joint_move: JointMove, returns: Sequence[float]) -> None:
        """Count a visit of `joint_move` with these `returns` of all agents, and update all strategies."""
        self._visits[joint_move] += 1
        for (agent, _), means in zip(self.position.joint, self._means, strict=True):
            means[joint_move] += (returns[agent] - means[joint_move]) / self._visits[joint_move]
        gains = [self._expected_returns(player) for player in range(len(self._means))]
        total_visits = self._visits.sum()
        for player, expected in enumerate(gains):
            strategy, regrets = self._strategies[player], self._regrets[player]
            self._strategy_sums[player] += total_visits * strategy
            np.maximum(regrets + expected - expected @ strategy, 0.0, out=regrets)
            total = regrets.sum()
            self._strategies[player] = regrets / total if total > 0 else np.full(len(regrets), 1 / len(regrets))

    def _expected_returns(self, player: int) -> np.ndarray:
        """Return the expected return of each move of the `player`-th agent that moves, given the others' strategies."""
        expected = np.moveaxis(self._means[player], player, 0)
        others = [strategy for other, strategy in enumerate(self._strategies) if other != player]
        for strategy in reversed(others):
            expected = expected @ strategy
        return expected

    def average_strategy(self, player: int) -> list[float]:
        """Return the average strategy of the `player`-th of the agents that move."""
        sums = self._strategy_sums[player]
        return (sums / sums.sum()).tolist()

    def visits_and_mean_values(self, player: int) -> tuple[list[int], list[float | None]]:
        """Return the visits of each move of the `player`-th agent that moves, and its mean return after each move."""
        others = tuple(axis for axis in range(self._visits.ndim) if axis != player)
        visits = self._visits.sum(axis=others)
        totals = (self._visits * self._means[player]).sum(axis=others)
        means = [float(total / count) if count else None for total, count in zip(totals, visits, strict=True)]
        return visits.astype(int).tolist(), means
