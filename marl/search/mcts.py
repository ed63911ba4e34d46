"""Monte Carlo tree search. A search is a generator of new positions; parallel searches evaluate theirs together."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from marl.search import gumbel
from marl.search.positions import SearchPosition, normalised
from marl.search.settings import SearchSettings
from marl.search.tree import TreeNode, TreePath, ValueRange, backpropagate, puct


class LeafEvaluation(NamedTuple):
    """Evaluation of a position before the end of the game."""

    prior: Sequence[float]
    """Probability of each move."""
    values: Sequence[float]
    """Expected return of each agent from this position on."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A new position in a tree, and the random number generator of its search."""

    position: SearchPosition
    rng: random.Random


LeafEvaluator = Callable[[Sequence[Leaf]], Sequence[LeafEvaluation]]
"""Function from positions to their evaluations. An evaluation is independent of the other positions."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search from a position."""

    moves: tuple[str, ...]
    policy: tuple[float, ...]
    """Share of visits of each move, or the improved policy of a Gumbel search: the training target of a policy."""
    values: tuple[float | None, ...]
    """The mover's mean return after each move, in the game's rewards, or None for moves without a visit."""
    visits: tuple[int, ...]
    chosen: str
    """The move to play."""
    prior: tuple[float, ...]


Search = Generator[Leaf, LeafEvaluation, SearchResult]


def search_all(searches: Sequence[Search], evaluate: LeafEvaluator) -> list[SearchResult]:
    """Run searches in parallel and return their results. Every round evaluates a new position of each search."""
    results: dict[int, SearchResult] = {}
    waiting: dict[int, Leaf] = {}

    def resume(number: int, evaluation: LeafEvaluation | None) -> None:
        try:
            waiting[number] = searches[number].send(evaluation)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            results[number] = end.value

    for number in range(len(searches)):
        resume(number, None)
    while waiting:
        leaves, waiting = waiting, {}
        for number, evaluation in zip(leaves, evaluate(list(leaves.values())), strict=True):
            resume(number, evaluation)
    return [results[number] for number in range(len(searches))]


def search(root: SearchPosition, settings: SearchSettings, rng: random.Random) -> Search:
    """Yield the new positions of a search from `root`, before the end of the game; return the result."""
    tree = _Tree(settings, rng)
    tree.root = yield from tree.grow(root)
    if noise := settings.noise:
        # Dirichlet noise, drawn as normalised gamma variates.
        concentration = noise.concentration / len(tree.root.prior)
        drawn = normalised([rng.gammavariate(concentration, 1.0) for _ in tree.root.prior])
        share = noise.share
        tree.root.prior = [(1 - share) * p + share * q for p, q in zip(tree.root.prior, drawn, strict=True)]
    if settings.rule == "gumbel":
        halving = gumbel.SequentialHalving(tree.root, tree.bounds, settings, rng)
        for move in halving.schedule(settings.simulations):
            yield from tree.simulate(move)
        policy = gumbel.improved_policy(gumbel.move_scores(tree.root, tree.bounds, settings))
        chosen = halving.choice()
    else:
        for _ in range(settings.simulations):
            yield from tree.simulate()
        policy = normalised(tree.root.visits)
        chosen = draw(policy, settings.temperature, rng)
    node, moves = tree.root, root.moves
    return SearchResult(moves, tuple(policy), tuple(node.means()), tuple(node.visits), moves[chosen], tuple(node.prior))


def apply_temperature(policy: Sequence[float], temperature: float) -> list[float]:
    """Return `policy` to the power of 1 / temperature, normalised; at 0 all mass is on the first most likely move."""
    maximum = max(policy)
    if temperature == 0:
        chosen = policy.index(maximum)
        return [float(move == chosen) for move in range(len(policy))]
    # Divided by the maximum, so that small temperatures do not underflow all probabilities.
    return normalised([(probability / maximum) ** (1 / temperature) for probability in policy])


def draw(policy: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Return a move drawn from `policy` to the power of 1 / temperature."""
    return rng.choices(range(len(policy)), apply_temperature(policy, temperature))[0]


class _Tree:
    """The tree of one search."""

    root: TreeNode[SearchPosition]

    def __init__(self, settings: SearchSettings, rng: random.Random) -> None:
        self._settings, self._rng, self.bounds = settings, rng, ValueRange()

    def simulate(self, first: int | None = None) -> Generator[Leaf, LeafEvaluation, None]:
        """Descend from the root to a new position or the end of the game, and back up its value.

        `first`: the move at the root, or None to select it.
        """
        path, node, move = TreePath[SearchPosition](), self.root, first
        while node.prior:
            if move is None:
                move = self._select(node)
            path.append((node, move))
            child = node.children[move]
            if child is None:
                position = node.position.after(node.position.moves[move])
                node.children[move] = node = yield from self.grow(position)
                break
            node, move = child, None
        backpropagate(path, node.values)

    def _select(self, node: TreeNode[SearchPosition]) -> int:
        if self._settings.rule == "gumbel":
            return gumbel.below_root(node, self.bounds, self._settings)
        return puct(node, self.bounds, self._settings.exploration)

    def grow(self, position: SearchPosition) -> Generator[Leaf, LeafEvaluation, TreeNode[SearchPosition]]:
        """Return a node for a position, evaluated unless the game has ended."""
        prior, values = (), position.returns
        if not position.over:
            evaluation = yield Leaf(position, self._rng)
            prior = evaluation.prior
            values = [earned + value for earned, value in zip(values, evaluation.values, strict=True)]
        self.bounds.add(values)
        return TreeNode(position, position.mover, prior, values)
