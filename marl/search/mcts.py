"""Monte Carlo tree search. A search is a generator that yields new positions; parallel searches share batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from marl.search import gumbel
from marl.search.positions import SearchPosition, normalise_weights
from marl.search.regret_matching import JointMove, JointNode
from marl.search.settings import SearchSettings
from marl.search.tree import TreeNode, ValueRange, select_move_by_puct


class LeafEvaluation(NamedTuple):
    """Evaluation of a position before the end of the game."""

    prior: Sequence[float]
    """Prior probability of each move. Empty if the evaluator defers it: the search then asks for it by another leaf
    with `prior_only`, unless no simulation goes beyond the position."""
    values: Sequence[float]
    """Expected return of each agent from this position on."""


@dataclass(frozen=True, slots=True)
class SearchLeaf:
    """A new position in a tree, and the random number generator of its search."""

    position: SearchPosition
    rng: random.Random
    prior_only: bool = False
    """True if the evaluator deferred the prior of the position. Only the prior of the evaluation is then read."""


LeafEvaluator = Callable[[Sequence[SearchLeaf]], Sequence[LeafEvaluation]]
"""Function that returns the evaluation of each leaf, independent of the other leaves of the batch."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search from a position."""

    moves: tuple[str, ...]
    policy: tuple[float, ...]
    """Share of visits of each move, or the improved policy of a Gumbel search: the training target of a policy."""
    values: tuple[float | None, ...]
    """The mover's mean return after each move, in the game's rewards, or None for moves without a visit."""
    visits: tuple[int, ...]
    chosen_move: str
    """The move to play."""
    prior: tuple[float, ...]
    """Prior probability of each move, including the noise at the root."""
    is_mixed: bool = False
    """True if the policy is the strategy to play, because several agents move at once: no temperature sharpens it."""


SearchNode = TreeNode[SearchPosition] | JointNode
"""Node at which one agent moves, or several at once."""
SearchGenerator = Generator[SearchLeaf, LeafEvaluation, SearchResult]
"""Generator that yields new leaves, receives their evaluations and returns the result of the search."""


def run_searches_in_parallel(
    searches: Sequence[SearchGenerator],
    evaluate_leaves: LeafEvaluator,
    needs_no_batch: Callable[[SearchLeaf], bool] | None = None,
) -> list[SearchResult]:
    """Run searches in parallel and return their results. Every round evaluates one leaf of each search together.

    A leaf for which `needs_no_batch` returns True is evaluated at once, and its search runs on (default: no leaf). Each
    batch then holds only leaves that an engine must score, so that fewer batches are needed.
    """
    results: dict[int, SearchResult] = {}
    waiting: dict[int, SearchLeaf] = {}

    def resume_search(search_index: int, evaluation: LeafEvaluation | None) -> None:
        try:
            leaf = searches[search_index].send(evaluation)  # type: ignore[arg-type]  # None starts a generator
            while needs_no_batch and needs_no_batch(leaf):
                leaf = searches[search_index].send(evaluate_leaves([leaf])[0])
            waiting[search_index] = leaf
        except StopIteration as end:
            results[search_index] = end.value

    for number in range(len(searches)):
        resume_search(number, None)
    while waiting:
        leaves, waiting = waiting, {}
        for number, evaluation in zip(leaves, evaluate_leaves(list(leaves.values())), strict=True):
            resume_search(number, evaluation)
    return [results[number] for number in range(len(searches))]


def search(
    root: SearchPosition,
    settings: SearchSettings,
    rng: random.Random,
    agent: str | None = None,
    tree: SearchTree | None = None,
) -> SearchGenerator:
    """Search from `root`: yield each new leaf before the end of the game, and return the result.

    `agent` is the agent to choose a move for, if several agents move at once (default: the agent to move). `tree` is
    the empty tree that the search builds (default: a tree of positions).
    """
    tree = tree or SearchTree(settings, rng)
    created = yield from tree.evaluate_and_create_node(root)
    if isinstance(created, JointNode):
        for _ in range(settings.simulations):
            yield from tree.run_simulation(created)
        return _joint_result(created, agent or root.agents[root.mover], rng)
    tree.root = created
    if not created.prior:
        yield from tree.ask_for_prior(created)
    if noise := settings.noise:
        # A sample of the Dirichlet distribution is a list of gamma variates divided by their sum.
        concentration = noise.concentration / len(tree.root.prior)
        drawn = normalise_weights([rng.gammavariate(concentration, 1.0) for _ in tree.root.prior])
        share, prior = noise.share, tree.root.prior
        tree.root.prior = [(1 - share) * p + share * q for p, q in zip(prior, drawn, strict=True)]
    if settings.rule == "gumbel":
        halving = gumbel.SequentialHalving(tree.root, tree.bounds, settings, rng)
        for move in halving.scheduled_root_moves(settings.simulations):
            yield from tree.run_simulation(tree.root, move)
        policy = gumbel.improved_policy(gumbel.improved_policy_logits(tree.root, tree.bounds, settings))
        chosen = halving.chosen_move_index()
    else:
        for _ in range(settings.simulations):
            yield from tree.run_simulation(tree.root)
        policy = normalise_weights(tree.root.visits)
        chosen = draw_move_index(policy, settings.temperature, rng)
    node, moves = tree.root, root.moves
    return SearchResult(
        moves, tuple(policy), tuple(node.mean_values()), tuple(node.visits), moves[chosen], tuple(node.prior)
    )


def _joint_result(root: JointNode, agent: str, rng: random.Random) -> SearchResult:
    """Return the result for `agent` of a search whose root has several agents that move at once."""
    players = [root.position.agents[index] for index, _ in root.position.joint]
    player = players.index(agent)
    moves, policy = root.position.joint[player][1], root.average_strategy(player)
    visits, means = root.visits_and_mean_values(player)
    chosen, uniform = draw_move_index(policy, 1.0, rng), (1 / len(moves),) * len(moves)
    return SearchResult(moves, tuple(policy), tuple(means), tuple(visits), moves[chosen], uniform, is_mixed=True)


def apply_temperature(move_probabilities: Sequence[float], temperature: float) -> list[float]:
    """Return `move_probabilities` to the power of 1 / temperature, normalised; at 0 all mass is on the first most
    likely move."""
    maximum = max(move_probabilities)
    if temperature == 0:
        greedy = [0.0] * len(move_probabilities)
        greedy[move_probabilities.index(maximum)] = 1.0
        return greedy
    # Probabilities are divided by the maximum, so that small temperatures do not underflow all of them.
    return normalise_weights([(probability / maximum) ** (1 / temperature) for probability in move_probabilities])


def draw_move_index(move_probabilities: Sequence[float], temperature: float, rng: random.Random) -> int:
    """Return the index of a move drawn from `move_probabilities` to the power of 1 / temperature."""
    return rng.choices(range(len(move_probabilities)), apply_temperature(move_probabilities, temperature))[0]


class SearchTree:
    """Tree of positions that a search has visited, below the position whose move is searched."""

    root: TreeNode[SearchPosition]

    def __init__(self, settings: SearchSettings, rng: random.Random) -> None:
        self._settings, self._rng, self.bounds = settings, rng, ValueRange()

    def run_simulation(
        self, root: SearchNode, first_move: int | None = None
    ) -> Generator[SearchLeaf, LeafEvaluation, None]:
        """Run one simulation: descend to a new position or the end of the game, and back up the value of this position.

        `first_move` is the move at the root, or None to select this move like all others.
        """
        path, node, move = list[tuple[SearchNode, int | JointMove]](), root, first_move
        is_new = False
        while not (is_new or node.position.over):
            if isinstance(node, JointNode):
                choice: int | JointMove = node.draw_joint_move(self._rng)
                child = node.children.get(choice)
                position = None if child else node.child_after(choice)
            else:
                if not node.prior:
                    yield from self.ask_for_prior(node)
                choice = self._select_move(node) if move is None else move
                child = node.children[choice]
                position = None if child else node.position.position_after(node.position.moves[choice])
            path.append((node, choice))
            if position is not None:
                child, is_new = (yield from self.evaluate_and_create_node(position)), True
                node.children[choice] = child  # type: ignore[index]  # both kinds of nodes are indexed by their choices
            assert child
            node, move = child, None
        values = node.values
        for visited, choice in path:
            if isinstance(visited, JointNode):
                visited.update(choice, values)  # type: ignore[arg-type]  # as above
            else:
                visited.add_visit(choice, values)  # type: ignore[arg-type]  # as above

    def _select_move(self, node: TreeNode[SearchPosition]) -> int:
        """Return the index of the move at `node` that the selection rule prefers."""
        if self._settings.rule == "gumbel":
            return gumbel.select_move_below_root(node, self.bounds, self._settings)
        return select_move_by_puct(node, self.bounds, self._settings.exploration)

    def evaluate_and_create_node(self, position: SearchPosition) -> Generator[SearchLeaf, LeafEvaluation, SearchNode]:
        """Return a new node for `position`, which is first yielded for evaluation unless the game is over."""
        prior, values = (), position.returns
        if not position.over:
            evaluation = yield SearchLeaf(position, self._rng)
            prior = evaluation.prior
            values = [earned + value for earned, value in zip(values, evaluation.values, strict=True)]
        self.bounds.extend_to_include(values)
        return self._create_node(position, prior, values)

    def ask_for_prior(self, node: TreeNode[SearchPosition]) -> Generator[SearchLeaf, LeafEvaluation, None]:
        """Set the prior of `node`, which the evaluator deferred until a simulation goes beyond the node."""
        evaluation = yield SearchLeaf(node.position, self._rng, prior_only=True)
        node.set_prior(evaluation.prior)

    def _create_node(self, position: SearchPosition, prior: Sequence[float], values: Sequence[float]) -> SearchNode:
        """Return a node without visits for `position`."""
        return JointNode(position, values) if position.joint else TreeNode(position, position.mover, prior, values)
