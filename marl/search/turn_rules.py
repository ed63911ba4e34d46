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
from marl.search.rollout_ratings import RolloutRater
from marl.search.settings import TurnSearchSettings
from marl.search.tree import TreeNode, TreePath, ValueRange, backpropagate, ucb1_scores

ForkGenerator = Generator[Fork, list[Trajectory], None]
"""Generator that yields the next fork, receives its rollouts without dropped ones, and never ends by itself."""
TurnFilter = Callable[[Turn], bool]
"""Function that returns True for a turn whose answers are searched."""


def sampled_token_count(completion: Completion) -> int:
    """Return the number of sampled tokens, as counted by a remote engine if the engine returns no tokens."""
    if completion.token_ids or completion.usage is None:
        return len(completion.token_ids)
    return completion.usage.completion_tokens


def next_searched_turn_index(rollout: Trajectory, first_index: int, is_searched: TurnFilter) -> int | None:
    """Return the index of the first searched turn with an index of at least `first_index`, or None if there is none."""
    for index in range(first_index, len(rollout.turns)):
        if is_searched(rollout.turns[index]):
            return index
    return None


@dataclass(slots=True)
class BranchedRollout:
    """Rollout whose turns are decided one by one among sampled answers, and the rollouts of the rejected answers."""

    rollouts: list[Trajectory]
    """All rollouts, in the order of their start."""
    current: Trajectory
    decided_turns: int = 0
    """Number of turns of `current` whose answer is final."""
    scores: list[list[float]] = field(default_factory=list)
    """For each decided turn, the scores of its candidates."""

    def next_open_turn(self, is_searched: TurnFilter) -> Turn | None:
        """Return the next searched turn of `current` whose answer is not final, or None at the end."""
        index = next_searched_turn_index(self.current, self.decided_turns, is_searched)
        return None if index is None else self.current.turns[index]

    def fork(self, turn: Turn, candidate_count: int, purpose: Purpose) -> Fork:
        """Return a fork into `candidate_count` continuations, each with a new answer in place of `turn`."""
        episode, index = turn.id
        # The fork must start from the rollout that played the turn, because it names and seeds the continuations.
        source = next(rollout for rollout in self.rollouts if rollout.id == episode)
        return Fork(source, index, n=candidate_count, purpose=purpose)

    def continue_from_best(self, turn: Turn, candidates: Sequence[Trajectory], scores: Sequence[float]) -> None:
        """Decide `turn`: the first candidate with the greatest score, if there is one, becomes the current rollout."""
        ids = {rollout.id for rollout in self.rollouts}
        self.rollouts += [candidate for candidate in candidates if candidate.id not in ids]
        self.scores.append(list(scores))
        self.decided_turns = turn.id[1] + 1
        if candidates:
            self.current = candidates[scores.index(max(scores))]


@dataclass(slots=True)
class RolloutPrefix:
    """Position of a search tree over turns: the turns of a rollout before a searched turn."""

    rollout: Trajectory
    """First rollout with these turns."""
    index: int | None
    """Index in `rollout` of the searched turn, or None after the last searched turn."""
    answers: dict[tuple[object, ...], int] = field(default_factory=dict)
    """(index of the next searched turn, texts sampled until then) -> index of the move in the tree node."""
    samples: int = 0
    """Number of answers sampled for the searched turn, with duplicates."""


class TurnTree:
    """Tree of all rollouts of a problem, in which equal answers are one move."""

    def __init__(
        self, first_rollout: Trajectory, settings: TurnSearchSettings, rater: RolloutRater, is_searched: TurnFilter
    ) -> None:
        self._settings, self._rating, self._is_searched = settings, rater, is_searched
        self._bounds = ValueRange()
        self._extra_answers = 0
        """Number of answers allowed at every turn beyond the settings' limit, raised whenever the tree is full."""
        self.root = TreeNode(
            RolloutPrefix(first_rollout, next_searched_turn_index(first_rollout, 0, is_searched)), 0, (), ()
        )
        self.insert_rollout([], self.root, first_rollout)

    def select_node_to_expand(self) -> tuple[TreePath[RolloutPrefix], TreeNode[RolloutPrefix]]:
        """Return the path to the node of the next answer, and the node.

        From the root, UCT selects a move at each node that has the maximum number of answers. The first node with fewer
        answers is returned.
        """
        while self._is_subtree_full(self.root):
            self._extra_answers += 1
        path, node = TreePath[RolloutPrefix](), self.root
        while self._has_max_answer_count(node):
            values, open_moves = list[float](), list[int]()
            for move in range(len(node.visits)):
                if not self._is_subtree_full(_child_node(node, move)):
                    open_moves.append(move)
                # A move's value mixes the mean rating of its rollouts with the rating of the answer itself.
                value = self._bounds.normalise(node.totals[move] / node.visits[move])
                if own_rating := _child_node(node, move).values:
                    share = self._settings.prefix
                    value = (1 - share) * value + share * self._bounds.normalise(own_rating[0])
                values.append(value)
            scores = ucb1_scores(values, node.visits, self._settings.exploration)
            move = max(open_moves, key=scores.__getitem__)
            path.append((node, move))
            node = _child_node(node, move)
        return path, node

    def insert_rollout(self, path: TreePath[RolloutPrefix], node: TreeNode[RolloutPrefix], rollout: Trajectory) -> None:
        """Add the answers of a rollout from `node` on, and back up its rating along `path` and the new moves.

        A rollout without a readable rating counts as the worst so far.
        """
        path = list(path)
        while node.position.index is not None:
            node.position.samples += 1
            move = self._find_or_add_answer_move(rollout, node, node.position.index)
            path.append((node, move))
            node = _child_node(node, move)
        rating = self._rating.rate_rollout(rollout)
        if rating is not None:
            self._bounds.extend_to_include([rating])
        elif self._bounds.low <= self._bounds.high:
            rating = self._bounds.low
        backpropagate(path, [rating or 0.0])

    def _find_or_add_answer_move(self, rollout: Trajectory, node: TreeNode[RolloutPrefix], turn_index: int) -> int:
        """Return the index of the move of `node` for the rollout's answer at turn `turn_index`. A new answer is
        added."""
        following = next_searched_turn_index(rollout, turn_index + 1, self._is_searched)
        # Answers are told apart by sampled texts alone: texts computed by rule may differ in rounding.
        texts, roles = list[str](), set[str]()
        for turn in rollout.turns[turn_index:following]:
            roles.add(turn.role)
            if sampled_token_count(turn.completion):
                texts.append(turn.completion.text)
        answer = (following, *texts)
        answers = node.position.answers
        if answer not in answers:
            values: tuple[float, ...] = ()
            # An answer has its own rating only if the rating role speaks before the next searched turn.
            if following is not None and self._rating.rating_role in roles:
                rating = self._rating.rate_turns(rollout.turns[:following])
                if rating is not None:
                    self._bounds.extend_to_include([rating])
                    values = (rating,)
            answers[answer] = node.add_move(TreeNode(RolloutPrefix(rollout, following), 0, (), values))
        return answers[answer]

    def _has_max_answer_count(self, node: TreeNode[RolloutPrefix]) -> bool:
        """Return True if the node has the maximum number of answers."""
        limit = self._settings.width * max(sum(node.visits), 1) ** self._settings.growth
        return node.position.samples >= int(limit) + self._extra_answers

    def _is_subtree_full(self, node: TreeNode[RolloutPrefix]) -> bool:
        """Return True if the node and all nodes below it have the maximum number of answers."""
        if node.position.index is None:
            return True
        moves = range(len(node.visits))
        return self._has_max_answer_count(node) and all(
            self._is_subtree_full(_child_node(node, move)) for move in moves
        )


def _child_node(node: TreeNode[RolloutPrefix], move: int) -> TreeNode[RolloutPrefix]:
    """Return the child of `node` for the move with index `move`."""
    child = node.children[move]
    assert child is not None  # every move is added together with its child
    return child


def best_of_n_forks(first_rollout: Trajectory, purpose: Purpose) -> ForkGenerator:
    """Yield forks before the first turn without end, so that every rollout is independent."""
    while True:
        yield Fork(first_rollout, 0, purpose=purpose)


def beam_forks(
    first_rollout: Trajectory,
    settings: TurnSearchSettings,
    rater: RolloutRater,
    is_searched: TurnFilter,
    purpose: Purpose,
) -> ForkGenerator:
    """Yield the forks of a beam search: at each turn, the best of `width` answers, each played to the end, is kept.

    One of the answers is that of the current rollout. After the last turn another beam search starts.
    """
    start = first_rollout
    while True:
        beam_rollout = BranchedRollout([start], start)
        while turn := beam_rollout.next_open_turn(is_searched):
            rollouts = yield beam_rollout.fork(turn, settings.width - 1, purpose)
            candidates = [beam_rollout.current, *rollouts]
            scores = [rating_sort_key(rater.rate_rollout(candidate)) for candidate in candidates]
            beam_rollout.continue_from_best(turn, candidates, scores)
        start = (yield Fork(first_rollout, 0, purpose=purpose))[0]


def tree_search_forks(
    first_rollout: Trajectory,
    settings: TurnSearchSettings,
    rater: RolloutRater,
    is_searched: TurnFilter,
    purpose: Purpose,
) -> ForkGenerator:
    """Yield the forks of a tree search. Each fork samples one answer at the node selected by UCT."""
    grown = TurnTree(first_rollout, settings, rater, is_searched)
    while True:
        path, node = grown.select_node_to_expand()
        index = node.position.index
        assert index is not None  # nodes to expand have a turn at which answers are sampled
        for rollout in (yield Fork(node.position.rollout, index, purpose=purpose)):
            grown.insert_rollout(path, node, rollout)


def rating_sort_key(rating: float | None) -> float:
    """Return `rating`, or minus infinity for a missing rating, as a key for sorting."""
    return -float("inf") if rating is None else rating
