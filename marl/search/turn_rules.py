"""Rules of search over the turns of a team: positions are prefixes of rollouts, and moves are sampled answers.

A rule is a generator: it yields forks and receives their rollouts, played to the end. No rule depends on the budget, so
a search with a smaller budget is a prefix of a search with a larger budget. Rules are best-of-n, a beam (AT-GRPO; also
used by `experience: tree`), and a tree of all rollouts by UCT (LATS, rStar).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from marl.core.graph import Trajectory
from marl.core.types import Completion, Fork, Purpose, Turn
from marl.search.rollout_ratings import RolloutRating
from marl.search.settings import TurnSearchSettings
from marl.search.tree import TreeNode, TreePath, ValueRange, backpropagate, uct

TurnRule = Generator[Fork, list[Trajectory], None]
"""Generator that yields the next fork, receives its rollouts without dropped ones, and never ends by itself."""
TurnFilter = Callable[[Turn], bool]
"""Function that returns True for a turn whose answers are searched."""


def sampled_tokens(completion: Completion) -> int:
    """Return the number of sampled tokens, as counted by a remote engine if the engine returns no tokens."""
    if completion.token_ids or completion.usage is None:
        return len(completion.token_ids)
    return completion.usage.completion_tokens


def next_branch_index(rollout: Trajectory, begin: int, searched: TurnFilter) -> int | None:
    """Return the index of the first searched turn from `begin` on, or None if there is none."""
    for index in range(begin, len(rollout.turns)):
        if searched(rollout.turns[index]):
            return index
    return None


@dataclass(slots=True)
class BranchedRollout:
    """A rollout grown turn by turn from its best candidates, with all candidates (AT-GRPO)."""

    rollouts: list[Trajectory]
    """All rollouts, in the order of their start."""
    current: Trajectory
    decided_turns: int = 0
    """Number of decided turns of `current`."""
    scores: list[list[float]] = field(default_factory=list)
    """Scores of the candidates, by decision."""

    def next(self, searched: TurnFilter) -> Turn | None:
        """Return the next turn to decide, or None at the end."""
        index = next_branch_index(self.current, self.decided_turns, searched)
        return None if index is None else self.current.turns[index]

    def fork(self, turn: Turn, n: int, purpose: Purpose) -> Fork:
        """Return a fork with `n` other answers in place of `turn`."""
        episode, index = turn.id
        # The episode in which the turn was played: it names and seeds the continuations.
        source = next(rollout for rollout in self.rollouts if rollout.id == episode)
        return Fork(source, index, n=n, purpose=purpose)

    def decide(self, turn: Turn, candidates: Sequence[Trajectory], scores: Sequence[float]) -> None:
        """Continue from the candidate with the greatest score (ties by index), or unchanged without candidates."""
        ids = {rollout.id for rollout in self.rollouts}
        self.rollouts += [candidate for candidate in candidates if candidate.id not in ids]
        self.scores.append(list(scores))
        self.decided_turns = turn.id[1] + 1
        if candidates:
            self.current = candidates[scores.index(max(scores))]


@dataclass(slots=True)
class RolloutPrefix:
    """Position of the tree: the turns of a rollout before a searched turn."""

    rollout: Trajectory
    """The first rollout with this prefix."""
    index: int | None
    """Index of the searched turn, or None after the last one."""
    answers: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Index of the next position and sampled texts up to it -> index of the move."""
    samples: int = 0
    """Number of answers sampled here, with duplicates."""


class TurnTree:
    """Tree of all rollouts of a problem, in which equal answers are one move."""

    def __init__(
        self, first: Trajectory, settings: TurnSearchSettings, rating: RolloutRating, searched: TurnFilter
    ) -> None:
        self._settings, self._rating, self._searched = settings, rating, searched
        self._bounds = ValueRange()
        self._extra_answers = 0
        """Answers at every turn beyond the settings' limit, raised whenever the tree is full."""
        self.root = TreeNode(RolloutPrefix(first, next_branch_index(first, 0, searched)), 0, (), ())
        self.insert([], self.root, first)

    def select(self) -> tuple[TreePath[RolloutPrefix], TreeNode[RolloutPrefix]]:
        """Return the path to the node of the next answer, and the node.

        The first node below its limit of answers is selected. Nodes at their limit are passed by UCT.
        """
        while self._full(self.root):
            self._extra_answers += 1
        path, node = TreePath[RolloutPrefix](), self.root
        while self._at_limit(node):
            scores = uct([self._value(node, move) for move in _moves(node)], node.visits, self._settings.exploration)
            open_moves = [move for move in _moves(node) if not self._full(_child(node, move))]
            move = max(open_moves, key=scores.__getitem__)
            path.append((node, move))
            node = _child(node, move)
        return path, node

    def insert(self, path: TreePath[RolloutPrefix], node: TreeNode[RolloutPrefix], rollout: Trajectory) -> None:
        """Add the answers of a rollout from `node` on, and back up its rating along `path` and the new moves.

        A rollout without a readable rating counts as the worst so far.
        """
        path = list(path)
        while node.position.index is not None:
            node.position.samples += 1
            move = self._move(node, node.position.index, rollout)
            path.append((node, move))
            node = _child(node, move)
        rating = self._rating.rate(rollout)
        if rating is not None:
            self._bounds.add([rating])
        elif self._bounds.low <= self._bounds.high:
            rating = self._bounds.low
        backpropagate(path, [rating or 0.0])

    def _move(self, node: TreeNode[RolloutPrefix], index: int, rollout: Trajectory) -> int:
        """Return the index of a rollout's move at `node`, added if new."""
        following = next_branch_index(rollout, index + 1, self._searched)
        # Turns without tokens follow from the others; some contain numbers that differ in their last digits.
        texts = [turn.completion.text for turn in rollout.turns[index:following] if sampled_tokens(turn.completion)]
        answer = (following, *texts)
        answers = node.position.answers
        if answer not in answers:
            values = self._prefix_rating(rollout, index, following)
            answers[answer] = node.add_move(TreeNode(RolloutPrefix(rollout, following), 0, (), values))
        return answers[answer]

    def _prefix_rating(self, rollout: Trajectory, begin: int, end: int | None) -> tuple[float, ...]:
        """Return the rating of the turns before `end`, or () if the rating role has no verdict from `begin` on."""
        if end is None or all(turn.role != self._rating.role for turn in rollout.turns[begin:end]):
            return ()
        rating = self._rating.of_turns(rollout.turns[:end])
        if rating is None:
            return ()
        self._bounds.add([rating])
        return (rating,)

    def _value(self, node: TreeNode[RolloutPrefix], move: int) -> float:
        """Return the value of a move from 0 to 1: the mean rating of its rollouts, mixed with its own rating if any."""
        mean = self._bounds.measure(node.totals[move] / node.visits[move])
        values = _child(node, move).values
        if not values:
            return mean
        share = self._settings.prefix
        return (1 - share) * mean + share * self._bounds.measure(values[0])

    def _at_limit(self, node: TreeNode[RolloutPrefix]) -> bool:
        """Return True if the node has the maximum number of answers."""
        limit = self._settings.width * max(sum(node.visits), 1) ** self._settings.growth
        return node.position.samples >= int(limit) + self._extra_answers

    def _full(self, node: TreeNode[RolloutPrefix]) -> bool:
        """Return True if the node and all nodes below it have the maximum number of answers."""
        if node.position.index is None:
            return True
        return self._at_limit(node) and all(self._full(_child(node, move)) for move in _moves(node))


def _moves(node: TreeNode[RolloutPrefix]) -> range:
    return range(len(node.visits))


def _child(node: TreeNode[RolloutPrefix], move: int) -> TreeNode[RolloutPrefix]:
    child = node.children[move]
    assert child is not None  # moves are added with their nodes
    return child


def best_of_n(first: Trajectory, purpose: Purpose) -> TurnRule:
    """Yield forks at the first turn: independent rollouts of the episode."""
    while True:
        yield Fork(first, 0, purpose=purpose)


def beam(
    first: Trajectory, settings: TurnSearchSettings, rating: RolloutRating, searched: TurnFilter, purpose: Purpose
) -> TurnRule:
    """Decide turn by turn between `width` answers, the current rollout's included; then start another beam."""
    start = first
    while True:
        beam_rollout = BranchedRollout([start], start)
        while turn := beam_rollout.next(searched):
            rollouts = yield beam_rollout.fork(turn, settings.width - 1, purpose)
            candidates = [beam_rollout.current, *rollouts]
            scores = [rating_key(rating.rate(candidate)) for candidate in candidates]
            beam_rollout.decide(turn, candidates, scores)
        start = (yield Fork(first, 0, purpose=purpose))[0]


def tree(
    first: Trajectory, settings: TurnSearchSettings, rating: RolloutRating, searched: TurnFilter, purpose: Purpose
) -> TurnRule:
    """Sample answers one at a time at the node selected by UCT, and play each to the end."""
    grown = TurnTree(first, settings, rating, searched)
    while True:
        path, node = grown.select()
        index = node.position.index
        assert index is not None  # a node at which answers are sampled
        for rollout in (yield Fork(node.position.rollout, index, purpose=purpose)):
            grown.insert(path, node, rollout)


def rating_key(rating: float | None) -> float:
    """Return a rating as a number for comparison. No rating is below all others."""
    return -float("inf") if rating is None else rating
