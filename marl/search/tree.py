"""Tree of a search: nodes with a prior, visits and values of moves; selection by PUCT or UCT, and backup of values.

Nothing here knows what a position is or where values come from: a search over the turns of a team, whose positions are
episodes that are forked, selects and backs up in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

PositionT = TypeVar("PositionT")


class TreeNode(Generic[PositionT]):
    """A position in the tree, and what has been seen of each move from there. Lists are by the number of the move."""

    __slots__ = ("children", "mover", "position", "prior", "totals", "values", "visits")

    def __init__(self, position: PositionT, mover: int, prior: Sequence[float], values: Sequence[float]) -> None:
        """`mover`: number of the agent to move. `prior`: of its moves; empty if the game is over. `values`: what each
        agent gets, from the root on, as it was evaluated here."""
        self.position, self.mover, self.prior, self.values = position, mover, prior, values
        many = len(prior)
        self.children: list[TreeNode[PositionT] | None] = [None] * many
        self.visits = [0] * many
        self.totals = [0.0] * many
        """Sums of what the mover got after each move."""

    def add_move(self, child: TreeNode[PositionT], prior: float = 1.0) -> int:
        """Add a move that was not known when the node was made; return its number."""
        self.prior = [*self.prior, prior]
        self.children.append(child)
        self.visits.append(0)
        self.totals.append(0.0)
        return len(self.children) - 1

    def means(self) -> list[float | None]:
        """Return the mean of what the mover got after each move; None for moves that were not visited."""
        return [total / visits if visits else None for total, visits in zip(self.totals, self.visits, strict=True)]


Path = list[tuple[TreeNode[PositionT], int]]
"""Nodes from the root on, each with the move that was taken there."""


@dataclass(slots=True)
class ValueRange:
    """Least and greatest value met in a tree, by which others are measured: 0 the least, 1 the greatest.

    As in MuZero (1911.08265, B): rewards of games come in any unit.
    """

    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Sequence[float]) -> None:
        """Take the values of all agents in."""
        self.low, self.high = min(self.low, *values), max(self.high, *values)

    def measure(self, value: float) -> float:
        """Return a value on the scale from 0 to 1; .5 while only one value is known."""
        width = self.high - self.low
        return (value - self.low) / width if width > 0 else 0.5


def puct(node: TreeNode[PositionT], bounds: ValueRange, exploration: float) -> int:
    """Return the move with the greatest Q + c P sqrt(sum N) / (1 + N) (AlphaZero, 1712.01815), the first of equals.

    Q of a move that was not visited is the mean of all that was seen from the node, its own evaluation included.
    """
    visits, totals, prior = node.visits, node.totals, node.prior
    seen = sum(visits)
    # 1 more, so that the prior decides on the first visit, too.
    pull = exploration * math.sqrt(seen + 1)
    unseen = bounds.measure((node.values[node.mover] + sum(totals)) / (1 + seen))
    best, chosen = -math.inf, 0
    for move, many in enumerate(visits):
        mean = bounds.measure(totals[move] / many) if many else unseen
        score = mean + pull * prior[move] / (1 + many)
        if score > best:
            best, chosen = score, move
    return chosen


def uct(means: Sequence[float], visits: Sequence[int], exploration: float) -> list[float]:
    """Return UCB1 of moves with these mean values and numbers of visits, at least 1: Q + c sqrt(ln N / n).

    N is the sum of visits (Kocsis and Szepesvari 2006, "Bandit based Monte-Carlo planning", where c = 2 C_p).
    """
    seen = math.log(sum(visits))
    return [mean + exploration * math.sqrt(seen / many) for mean, many in zip(means, visits, strict=True)]


def back_up(path: Path[PositionT], values: Sequence[float]) -> None:
    """Count a visit of every move of a path, after which the agents got `values`."""
    for node, move in path:
        node.visits[move] += 1
        node.totals[move] += values[node.mover]
