"""Search over the turns of a team: positions are prefixes of courses, and moves are answers that were sampled there.

A rule is a generator: it yields forks, each of which plays on to the end of its episode, and gets their courses. None
knows the budget, so a search with less of it is the beginning of one with more. Rules are best-of-n, a beam, which
`experience: tree` grows too (AT-GRPO), and a tree of all courses by UCT (LATS, rStar).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from marl.graph import Trajectory
from marl.search.ratings import CourseRating
from marl.search.settings import TurnSearchSettings
from marl.search.tree import Path, TreeNode, ValueRange, back_up, uct
from marl.types import Completion, Fork, Purpose, Turn

TurnRule = Generator[Fork, list[Trajectory], None]
"""Yield what is to be played next; get its courses, without those that were dropped. It never ends by itself."""
Searched = Callable[[Turn], bool]
"""Return True for a turn at which answers are compared."""


def sampled_tokens(completion: Completion) -> int:
    """Return the number of tokens that were sampled, or that a remote engine counted where it names none."""
    if completion.token_ids or completion.usage is None:
        return len(completion.token_ids)
    return completion.usage.completion_tokens


def next_turn(course: Trajectory, begin: int, searched: Searched) -> int | None:
    """Return the index of a course's first turn from `begin` on at which answers are compared; None without one."""
    return next((i for i, turn in enumerate(course.turns[begin:], begin) if searched(turn)), None)


@dataclass(slots=True)
class Trunk:
    """The course that goes on from the best candidates, and all courses that left it (AT-GRPO)."""

    courses: list[Trajectory]
    """All of them, in the order in which they were begun."""
    course: Trajectory
    settled: int = 0
    """Number of its turns that are decided."""
    scores: list[list[float]] = field(default_factory=list)
    """Scores of the candidates, by decision."""

    def next(self, searched: Searched) -> Turn | None:
        """Return the next turn with something to decide."""
        index = next_turn(self.course, self.settled, searched)
        return None if index is None else self.course.turns[index]

    def fork(self, turn: Turn, n: int, purpose: Purpose) -> Fork:
        """Return what plays `n` other answers in place of a turn."""
        episode, index = turn.id
        # The episode that first held the turn, by which its continuations are named and seeded.
        source = next(course for course in self.courses if course.id == episode)
        return Fork(source, index, n=n, purpose=purpose)

    def decide(self, turn: Turn, candidates: Sequence[Trajectory], scores: Sequence[float]) -> None:
        """Go on from the candidate with the greatest score, the first of equals; as before if there is none."""
        known = {course.id for course in self.courses}
        self.courses += [course for course in candidates if course.id not in known]
        self.scores.append(list(scores))
        self.settled = turn.id[1] + 1
        if candidates:
            self.course = candidates[scores.index(max(scores))]


@dataclass(slots=True)
class TurnPosition:
    """A position: the turns of a course before one of them."""

    course: Trajectory
    """The one that came here first."""
    index: int | None
    """Number of the turn at which answers are compared; None: there is no more of them."""
    answers: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Texts that were sampled from here up to the next position -> number of the move."""
    samples: int = 0
    """Number of answers that were sampled here, equal ones included."""


class TurnTree:
    """All courses of a problem as a tree, in which equal answers are one move."""

    def __init__(
        self, first: Trajectory, settings: TurnSearchSettings, rating: CourseRating, searched: Searched
    ) -> None:
        self._settings, self._rating, self._searched = settings, rating, searched
        self._bounds = ValueRange()
        self._more = 0
        """Answers at every turn beyond the settings', since the tree had all that these allow."""
        self.root = TreeNode(TurnPosition(first, next_turn(first, 0, searched)), 0, (), ())
        self.insert([], self.root, first)

    def select(self) -> tuple[Path[TurnPosition], TreeNode[TurnPosition]]:
        """Return the node at which the next answer is to be sampled, and the path to it.

        At each node that has not all its answers yet, one is sampled; else UCT goes on to one of them.
        """
        while self._full(self.root):
            self._more += 1
        path, node = Path[TurnPosition](), self.root
        while self._has_all(node):
            move = self._best_move(node)
            path.append((node, move))
            node = self._child(node, move)
        return path, node

    def insert(self, path: Path[TurnPosition], node: TreeNode[TurnPosition], course: Trajectory) -> None:
        """Add what a course said from a node on, and back up its rating along the whole path.

        A course without a readable rating counts as much as the worst one.
        """
        path = list(path)
        while node.position.index is not None:
            node.position.samples += 1
            move = self._move(node, node.position.index, course)
            path.append((node, move))
            node = self._child(node, move)
        rating = self._rating.of_course(course)
        if rating is not None:
            self._bounds.add([rating])
        elif self._bounds.low <= self._bounds.high:
            rating = self._bounds.low
        back_up(path, [rating or 0.0])

    def _move(self, node: TreeNode[TurnPosition], index: int, course: Trajectory) -> int:
        """Return the number of the move that a course made at a node, after adding it if it is new."""
        following = next_turn(course, index + 1, self._searched)
        between = course.turns[index:following]
        # Turns without tokens follow from the others; some hold numbers that differ in their last digits.
        answer = (following, *(turn.completion.text for turn in between if sampled_tokens(turn.completion)))
        answers = node.position.answers
        if answer not in answers:
            values = self._prefix_rating(course, index, following)
            answers[answer] = node.add_move(TreeNode(TurnPosition(course, following), 0, (), values))
        return answers[answer]

    def _prefix_rating(self, course: Trajectory, begin: int, end: int | None) -> tuple[float, ...]:
        """Return the rating of a course's turns before `end` if it was given from `begin` on; () if there is none."""
        if end is None or all(turn.role != self._rating.role for turn in course.turns[begin:end]):
            return ()
        rating = self._rating.of_turns(course.turns[:end])
        if rating is None:
            return ()
        self._bounds.add([rating])
        return (rating,)

    def _best_move(self, node: TreeNode[TurnPosition]) -> int:
        """Return the move with the greatest UCT, the first of equals, of those below which there is more to sample."""
        scores = uct([self._value(node, move) for move in range(len(node.visits))], node.visits, self._exploration)
        going_on = [move for move in range(len(scores)) if not self._full(self._child(node, move))]
        return max(going_on, key=scores.__getitem__)

    def _value(self, node: TreeNode[TurnPosition], move: int) -> float:
        """Return the value of a move from 0 to 1: of the courses below it, and its own if it was rated itself."""
        mean = self._bounds.measure(node.totals[move] / node.visits[move])
        values = self._child(node, move).values
        share = self._settings.prefix if values else 0.0
        return (1 - share) * mean + (share * self._bounds.measure(values[0]) if values else 0.0)

    @property
    def _exploration(self) -> float:
        return self._settings.exploration

    def _child(self, node: TreeNode[TurnPosition], move: int) -> TreeNode[TurnPosition]:
        child = node.children[move]
        assert child is not None  # moves are added with their nodes
        return child

    def _has_all(self, node: TreeNode[TurnPosition]) -> bool:
        """Return True if as many answers were sampled at a node as the settings allow."""
        allowed = self._settings.width * max(sum(node.visits), 1) ** self._settings.growth
        return node.position.samples >= int(allowed) + self._more

    def _full(self, node: TreeNode[TurnPosition]) -> bool:
        """Return True if nothing more is to be sampled at a node or below it."""
        if node.position.index is None:
            return True
        return self._has_all(node) and all(self._full(self._child(node, move)) for move in range(len(node.visits)))


def best_of_n(first: Trajectory, purpose: Purpose) -> TurnRule:
    """Play the whole episode anew again and again."""
    while True:
        yield Fork(first, 0, purpose=purpose)


def beam(
    first: Trajectory, settings: TurnSearchSettings, rating: CourseRating, searched: Searched, purpose: Purpose
) -> TurnRule:
    """Decide turn by turn between `width` answers, that of the trunk included; then begin anew with another course."""
    start = first
    while True:
        trunk = Trunk([start], start)
        while turn := trunk.next(searched):
            courses = yield trunk.fork(turn, settings.width - 1, purpose)
            candidates = [trunk.course, *courses]
            trunk.decide(turn, candidates, [comparable(rating.of_course(course)) for course in candidates])
        start = (yield Fork(first, 0, purpose=purpose))[0]


def tree(
    first: Trajectory, settings: TurnSearchSettings, rating: CourseRating, searched: Searched, purpose: Purpose
) -> TurnRule:
    """Sample one answer after another where UCT leads, and play each to its end."""
    grown = TurnTree(first, settings, rating, searched)
    while True:
        path, node = grown.select()
        index = node.position.index
        assert index is not None  # a node at which answers are sampled
        for course in (yield Fork(node.position.course, index, purpose=purpose)):
            grown.insert(path, node, course)


def comparable(rating: float | None) -> float:
    """Return a rating as a number; one that could not be read is below all others."""
    return -float("inf") if rating is None else rating
