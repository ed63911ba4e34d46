"""Information set Monte Carlo tree search: states that the agent to move cannot distinguish share one node.

Cowling, Powley and Whitehouse 2012, "Information set Monte Carlo tree search", in the form with a tree of its own for
every agent (MO-ISMCTS). OpenSpiel's `ISMCTSBot` is the same search. A determinization is searched for one simulation
only, so no plan can use hidden information of the other agents. Two assumptions remain: the others' earlier moves say
nothing about what they hide, and their nodes hold only states in which they face the real information of the agent that
searches.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence

from marl.search.mcts import LeafEvaluation, SearchLeaf, SearchNode, SearchTree
from marl.search.positions import RequestKey, SearchPosition
from marl.search.settings import SearchSettings
from marl.search.tree import TreeNode, TreePath, backpropagate


class InformationSetTree(SearchTree):
    """Tree whose nodes are information sets of the agent to move. Each simulation starts in another determinization.

    Agents that move at once are nodes one after another, as the second one's information does not hold the move of the
    first.
    """

    def __init__(self, settings: SearchSettings, rng: random.Random, roots: Iterator[SearchPosition]) -> None:
        """Create an empty tree.

        For each simulation, `roots` yields a state that the searching agent cannot tell from the real one.
        """
        super().__init__(settings, rng)
        self._roots = roots
        self._nodes: dict[RequestKey, SearchNode] = {}

    def run_simulation(
        self, root: SearchNode, first_move: int | None = None
    ) -> Generator[SearchLeaf, LeafEvaluation, None]:
        """Run one simulation in the next determinization, down to a new information set or the end of the game."""
        path: TreePath[SearchPosition] = []
        node, position, move = root, next(self._roots), first_move
        while True:
            assert isinstance(node, TreeNode)  # as `_create_node` returns
            if not node.prior:
                yield from self.ask_for_prior(node)
            choice = self._select_move(node) if move is None else move
            path.append((node, choice))
            position, move = position.child(node.position.moves[choice]), None
            key = None if position.over else position.request_key
            if key is None or key not in self._nodes:
                break
            node = self._nodes[key]
        leaf = yield from self.evaluate_and_create_node(position)
        if key is not None:
            self._nodes[key] = leaf
        backpropagate(path, leaf.values)

    def _create_node(
        self, position: SearchPosition, prior: Sequence[float], values: Sequence[float]
    ) -> TreeNode[SearchPosition]:
        return TreeNode(position, position.mover, prior, values)
