"""Searches side by side: each is a generator of new positions, and those of all are evaluated in one batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from marl.search import gumbel
from marl.search.positions import SearchPosition, normalised
from marl.search.settings import RootNoise, SearchSettings
from marl.search.tree import Path, TreeNode, ValueRange, back_up, puct


class Evaluation(NamedTuple):
    """Judgement of a position that is not over."""

    prior: Sequence[float]
    """Of each move."""
    values: Sequence[float]
    """Of each agent: what it is expected to be paid from here on."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A new position, and the random numbers of the search that met it."""

    position: SearchPosition
    rng: random.Random


Evaluate = Callable[[Sequence[Leaf]], Sequence[Evaluation]]
"""Return an evaluation of each position; what one gets does not depend on the others."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search from a position."""

    moves: tuple[str, ...]
    policy: tuple[float, ...]
    """Share of visits, or the improved policy of a Gumbel search: what a policy is to learn."""
    values: tuple[float | None, ...]
    """Mean of what the mover got after each move, in the game's rewards; None for moves without a visit."""
    visits: tuple[int, ...]
    chosen: str
    """The move to play."""
    prior: tuple[float, ...]


Search = Generator[Leaf, Evaluation, SearchResult]


def search_all(searches: Sequence[Search], evaluate: Evaluate) -> list[SearchResult]:
    """Run searches side by side and return their results: in every round, one new position of each is evaluated."""
    results: dict[int, SearchResult] = {}
    waiting: dict[int, Leaf] = {}

    def go_on(number: int, evaluation: Evaluation | None) -> None:
        try:
            waiting[number] = searches[number].send(evaluation)  # type: ignore[arg-type]  # None begins a generator
        except StopIteration as end:
            results[number] = end.value

    for number in range(len(searches)):
        go_on(number, None)
    while waiting:
        leaves, waiting = waiting, {}
        for number, evaluation in zip(leaves, evaluate(list(leaves.values())), strict=True):
            go_on(number, evaluation)
    return [results[number] for number in range(len(searches))]


def search(root: SearchPosition, settings: SearchSettings, rng: random.Random) -> Search:
    """Yield the positions to be evaluated of one search from `root`, which is not over; return its result."""
    tree = _Tree(root, settings, rng)
    yield from tree.plant()
    if settings.rule == "gumbel":
        return (yield from tree.halve())
    for _ in range(settings.simulations):
        yield from tree.simulate()
    visits = tree.root.visits
    policy = normalised(visits)
    return tree.result(policy, draw(policy, settings.temperature, rng))


def sharpened(policy: Sequence[float], temperature: float) -> list[float]:
    """Return a policy to the power of 1 / temperature; at 0 all is on the most likely move, the first of equals."""
    greatest = max(policy)
    if temperature == 0:
        chosen = policy.index(greatest)
        return [float(move == chosen) for move in range(len(policy))]
    # Divided by the greatest, so that small temperatures do not underflow all of them.
    return normalised([(chance / greatest) ** (1 / temperature) for chance in policy])


def draw(policy: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Return a move drawn from a policy to the power of 1 / temperature."""
    return rng.choices(range(len(policy)), sharpened(policy, temperature))[0]


class _Tree:
    """The tree of one search."""

    root: TreeNode[SearchPosition]

    def __init__(self, start: SearchPosition, settings: SearchSettings, rng: random.Random) -> None:
        self._start, self._settings, self._rng, self._bounds = start, settings, rng, ValueRange()

    def plant(self) -> Generator[Leaf, Evaluation, None]:
        """Evaluate the root."""
        self.root = yield from self._grow(self._start)
        if noise := self._settings.noise:
            self.root.prior = _noisy(self.root.prior, noise, self._rng)

    def halve(self) -> Search:
        """Simulate by sequential halving; return the result of a Gumbel search."""
        halving = gumbel.SequentialHalving(self.root, self._bounds, self._settings, self._rng)
        for move in halving.schedule(self._settings.simulations):
            yield from self.simulate(move)
        policy = gumbel.improved_policy(gumbel.move_scores(self.root, self._bounds, self._settings))
        return self.result(policy, halving.choice())

    def simulate(self, first: int | None = None) -> Generator[Leaf, Evaluation, None]:
        """Go down from the root, by `first` if it is given, to a new position or an end; back up what it is worth."""
        path, node, move = Path[SearchPosition](), self.root, first
        while node.prior:
            move = self._select(node) if move is None else move
            path.append((node, move))
            child = node.children[move]
            if child is None:
                position = node.position.after(node.position.moves[move])
                node.children[move] = node = yield from self._grow(position)
                break
            node, move = child, None
        back_up(path, node.values)

    def result(self, policy: Sequence[float], chosen: int) -> SearchResult:
        """Return the result of the search."""
        root, moves = self.root, self._start.moves
        return SearchResult(
            moves, tuple(policy), tuple(root.means()), tuple(root.visits), moves[chosen], tuple(root.prior)
        )

    def _select(self, node: TreeNode[SearchPosition]) -> int:
        if self._settings.rule == "gumbel":
            return gumbel.below_root(node, self._bounds, self._settings)
        return puct(node, self._bounds, self._settings.exploration)

    def _grow(self, position: SearchPosition) -> Generator[Leaf, Evaluation, TreeNode[SearchPosition]]:
        """Return a node for a position, evaluated unless the game is over there."""
        prior, values = (), position.paid
        if not position.over:
            evaluation = yield Leaf(position, self._rng)
            prior = evaluation.prior
            values = [paid + value for paid, value in zip(values, evaluation.values, strict=True)]
        self._bounds.add(values)
        return TreeNode(position, position.mover, prior, values)


def _noisy(prior: Sequence[float], noise: RootNoise, rng: random.Random) -> list[float]:
    """Return the prior mixed with a draw from a Dirichlet distribution."""
    each = noise.concentration / len(prior)
    drawn = normalised([rng.gammavariate(each, 1.0) for _ in prior])
    return [(1 - noise.share) * p + noise.share * q for p, q in zip(prior, drawn, strict=True)]
