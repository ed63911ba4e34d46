"""Searches over the turns of teams, those of all problems side by side: what each wants to play is one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl.graph import Trajectory
from marl.rollout.base import BaseSimulator
from marl.search.ratings import CourseRating
from marl.search.settings import TurnSearchSettings
from marl.search.turns import TurnRule, beam, best_of_n, comparable, next_turn, sampled_tokens, tree
from marl.types import Fork, Purpose, Turn


@dataclass(frozen=True, slots=True)
class CourseCost:
    """Tokens of the turns that a course has to itself: those that it shares with another one were counted there."""

    tokens: int
    """Sampled."""
    prompt_tokens: int
    """Of all their prompts, each counted whole, as if nothing of them was in memory."""


@dataclass(frozen=True, slots=True)
class TurnSearchResult:
    """Result of a search over the turns of one problem."""

    courses: tuple[Trajectory, ...]
    """Courses that ended within the budget, in the order in which they began; the first is play without search."""
    ratings: tuple[float | None, ...]
    """Of each; None where its verdict cannot be read."""
    costs: tuple[CourseCost, ...]
    discarded_tokens: int
    """Tokens of the courses after these: a sampler that stops at the budget would have left the first of them unended
    and not begun the others."""

    @property
    def chosen(self) -> Trajectory:
        """Return the course with the greatest rating, the first of equals."""
        return self.courses[self._best]

    @property
    def rating(self) -> float | None:
        """Return the rating of the chosen course."""
        return self.ratings[self._best]

    @property
    def tokens(self) -> int:
        """Return the number of tokens that were sampled for these courses."""
        return sum(cost.tokens for cost in self.costs)

    @property
    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens that were read for these courses."""
        return sum(cost.prompt_tokens for cost in self.costs)

    def within(self, tokens: int) -> TurnSearchResult:
        """Return the result of the same search with a smaller budget."""
        many = _that_fit(self.costs, tokens)
        left_out = sum(cost.tokens for cost in self.costs[many : many + 1])
        return TurnSearchResult(self.courses[:many], self.ratings[:many], self.costs[:many], left_out)

    @property
    def _best(self) -> int:
        ratings = [comparable(rating) for rating in self.ratings]
        return ratings.index(max(ratings))


class TeamSearch:
    """Searches from the same first courses with any settings, with the same random numbers each time."""

    def __init__(self, simulator: BaseSimulator, purpose: Purpose = "eval") -> None:
        self._simulator = simulator
        self._purpose: Purpose = purpose

    def __call__(self, firsts: Sequence[Trajectory], settings: TurnSearchSettings) -> list[TurnSearchResult]:
        """Return the result of a search for each of these episodes, which were played without one.

        Raises:
            ValueError: if the rating role gives no score of that name.
            GameError: if a game raises.
        """
        searches = [_ProblemSearch(first, settings, self._purpose) for first in firsts]
        try:
            while going := [(each, fork) for each in searches if (fork := each.wanted) is not None]:
                played = self._simulator.branch([fork for _, fork in going])
                for (each, _), courses in zip(going, played, strict=True):
                    each.take(courses)
        finally:
            self._simulator.release(course for each in searches for course in each.courses)
        return [each.result() for each in searches]


class _ProblemSearch:
    """The search of one problem, and what it has cost."""

    def __init__(self, first: Trajectory, settings: TurnSearchSettings, purpose: Purpose) -> None:
        self._settings, self._rating = settings, CourseRating(settings.by, settings.verdicts)
        self.courses = [first]
        self._costs = [_cost(first)]
        self._rule = self._begin(first, purpose)
        self.wanted: Fork | None = None
        """Fork that is to be played next; None at the end of the search."""
        # Where nothing is sampled anew, all courses would be the same, and some searches would never end.
        if next_turn(first, 0, self._searched) is not None and self._costs[0].tokens < settings.tokens:
            self.wanted = next(self._rule)

    def _begin(self, first: Trajectory, purpose: Purpose) -> TurnRule:
        match self._settings.rule:
            case "best_of_n":
                return best_of_n(first, purpose)
            case "beam":
                return beam(first, self._settings, self._rating, self._searched, purpose)
            case "tree":
                return tree(first, self._settings, self._rating, self._searched, purpose)

    def _searched(self, turn: Turn) -> bool:
        """Return True for a turn at which other answers are to be sampled.

        Never at the rating's own: a search that could ask its judge again would choose lucky verdicts.
        """
        roles = self._settings.roles
        chosen = turn.role in roles if roles else turn.role != self._rating.role
        return chosen and turn.request.sampling.temperature > 0 and sampled_tokens(turn.completion) > 0

    def take(self, courses: Sequence[Trajectory]) -> None:
        """Take the courses that were asked for, and go on unless the budget is spent."""
        self.courses += courses
        self._costs += map(_cost, courses)
        # A search whose game raised has nothing to go on from; one whose courses cost nothing would never end.
        spent = sum(cost.tokens for cost in self._costs)
        ended = not courses or not any(cost.tokens for cost in self._costs[-len(courses) :])
        self.wanted = None if ended or spent >= self._settings.tokens else self._rule.send(list(courses))

    def result(self) -> TurnSearchResult:
        """Return what is known when the search has ended."""
        many = _that_fit(self._costs, self._settings.tokens)
        courses = tuple(self.courses[:many])
        ratings = tuple(self._rating.of_course(course) for course in courses)
        discarded = sum(cost.tokens for cost in self._costs[many:])
        return TurnSearchResult(courses, ratings, tuple(self._costs[:many]), discarded)


def _cost(course: Trajectory) -> CourseCost:
    completions = [turn.completion for turn in course.turns if turn.id[0] == course.id]
    prompts = sum(len(each.prompt_ids) or (each.usage.prompt_tokens if each.usage else 0) for each in completions)
    return CourseCost(sum(map(sampled_tokens, completions)), prompts)


def _that_fit(costs: Sequence[CourseCost], tokens: int) -> int:
    """Return the number of courses that were at their ends when so many tokens had been sampled, at least 1."""
    spent = 0
    for number, cost in enumerate(costs):
        spent += cost.tokens
        if spent > tokens:
            return max(number, 1)
    return len(costs)
