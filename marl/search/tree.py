"""Search tree: nodes with prior, visits and values of moves; selection by PUCT or UCT, and backpropagation.

The tree is generic in its positions and in the source of values: states of a game (`marl.search.mcts`), or prefixes of
a team's episodes (`marl.search.turn_rules`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

PositionT = TypeVar("PositionT")


class TreeNode(Generic[PositionT]):
    """A position in the tree, with the statistics of its moves. Lists are indexed by move."""

    __slots__ = ("children", "mover", "position", "prior", "totals", "values", "visits")

    def __init__(self, position: PositionT, mover: int, prior: Sequence[float], values: Sequence[float]) -> None:
        """Create a node without visits.

        Args:
            position: the position.
            mover: index of the agent to move.
            prior: probability of each move; empty after the end of the game, or until `set_prior`.
            values: each agent's return from the root on, as evaluated at this position.
        """
        self.position, self.mover, self.values = position, mover, values
        self.set_prior(prior)

    def set_prior(self, prior: Sequence[float]) -> None:
        """Set the prior of this node, which has no visits so far, and make room for the statistics of its moves."""
        moves = len(prior)
        self.prior = prior
        self.children: list[TreeNode[PositionT] | None] = [None] * moves
        self.visits = [0] * moves
        self.totals = [0.0] * moves
        """Sum of the mover's returns after each move."""

    def add_visit(self, move: int, returns: Sequence[float]) -> None:
        """Count a visit of `move`, and add the mover's return to its total. `returns` holds each agent's return."""
        self.visits[move] += 1
        self.totals[move] += returns[self.mover]

    def add_move(self, child: TreeNode[PositionT]) -> int:
        """Add a move to `child`, found after the creation of this node, with prior 1; return the move's index."""
        self.prior = [*self.prior, 1.0]
        self.children.append(child)
        self.visits.append(0)
        self.totals.append(0.0)
        return len(self.children) - 1

    def mean_values(self) -> list[float | None]:
        """Return the mover's mean return after each move, or None for moves without a visit."""
        return [total / visits if visits else None for total, visits in zip(self.totals, self.visits, strict=True)]


TreePath = list[tuple[TreeNode[PositionT], int]]
"""Nodes from the root on, each with the selected move."""


@dataclass(slots=True)
class ValueRange:
    """Least and greatest value in a tree, by which values are scaled to the range from 0 to 1.

    Games have rewards of any size, and the formulas of searches expect values in this range (as in MuZero, 1911.08265,
    appendix B).
    """

    low: float = math.inf
    high: float = -math.inf

    def extend_to_include(self, values: Sequence[float]) -> None:
        """Extend the range so that it includes `values`, one value for each agent."""
        self.low, self.high = min(self.low, *values), max(self.high, *values)

    def normalise(self, value: float) -> float:
        """Return `value` scaled to the range from 0 to 1, or .5 while all values so far are equal."""
        width = self.high - self.low
        return (value - self.low) / width if width > 0 else 0.5


def select_move_by_puct(node: TreeNode[PositionT], value_range: ValueRange, exploration: float) -> int:
    """Return the first index of a move with the greatest Q + c P sqrt(sum N) / (1 + N) (AlphaZero, 1712.01815).

    Q of a move without a visit is the mean over the node's own evaluation and all visits.
    """
    visits, totals, prior = node.visits, node.totals, node.prior
    total_visits = sum(visits)
    # Unlike in the paper, 1 is added to the visits, so that the prior already decides the first visit.
    weight = exploration * math.sqrt(total_visits + 1)
    unvisited_mean = value_range.normalise((node.values[node.mover] + sum(totals)) / (1 + total_visits))
    low, width = value_range.low, value_range.high - value_range.low
    best, chosen = -math.inf, 0
    for move, count in enumerate(visits):
        # As `value_range.normalise`, whose calls for every move would take most of the time of a selection.
        mean = ((totals[move] / count - low) / width if width > 0 else 0.5) if count else unvisited_mean
        score = mean + weight * prior[move] / (1 + count)
        if score > best:
            best, chosen = score, move
    return chosen


def ucb1_scores(mean_values: Sequence[float], visits: Sequence[int], exploration: float) -> list[float]:
    """Return the UCB1 score of each move: Q + c sqrt(ln N / n), with Q in `mean_values`, n >= 1 in `visits`, c
    `exploration`.

    N is the sum of all n (Kocsis and Szepesvari 2006, "Bandit based Monte-Carlo planning", where c = 2 C_p).
    """
    log_total = math.log(sum(visits))
    return [mean + exploration * math.sqrt(log_total / count) for mean, count in zip(mean_values, visits, strict=True)]


def backpropagate(path: TreePath[PositionT], returns: Sequence[float]) -> None:
    """Count a visit of every move on `path`, and add the mover's return to the move's total (see `add_visit`)."""
    for node, move in path:
        node.add_visit(move, returns)
