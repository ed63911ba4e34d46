"""Searches over the turns of teams. The rollouts requested by parallel searches are played as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl.core.graph import Trajectory
from marl.core.types import Fork, Purpose, Turn
from marl.rollout.base import BaseSimulator
from marl.search.rollout_ratings import RolloutRating
from marl.search.settings import TurnSearchSettings
from marl.search.turn_rules import TurnRule, beam, best_of_n, next_branch_index, rating_key, sampled_tokens, tree


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """Tokens of a rollout's own turns, without the turns shared with an earlier rollout."""

    tokens: int
    """Number of sampled tokens."""
    prompt_tokens: int
    """Number of prompt tokens. Each prompt counts in full, as if without a prefix cache."""


@dataclass(frozen=True, slots=True)
class TurnSearchResult:
    """Result of a search over the turns of one problem."""

    rollouts: tuple[Trajectory, ...]
    """Rollouts finished within the budget, in the order of their start. The first is play without search."""
    ratings: tuple[float | None, ...]
    """Rating of each rollout, or None without a readable verdict."""
    costs: tuple[RolloutCost, ...]
    discarded_tokens: int
    """Tokens of further rollouts, beyond the budget. A sampler with a hard stop at the budget would have left the first
    of them unfinished, and not started the others."""

    @property
    def chosen(self) -> Trajectory:
        """Return the rollout with the greatest rating; ties by start."""
        return self.rollouts[self._best]

    @property
    def rating(self) -> float | None:
        """Return the rating of the chosen rollout."""
        return self.ratings[self._best]

    @property
    def tokens(self) -> int:
        """Return the number of sampled tokens of the rollouts."""
        return sum(cost.tokens for cost in self.costs)

    @property
    def prompt_tokens(self) -> int:
        """Return the number of prompt tokens of the rollouts."""
        return sum(cost.prompt_tokens for cost in self.costs)

    def within(self, tokens: int) -> TurnSearchResult:
        """Return the result of the same search with a smaller budget."""
        count = _count_within(self.costs, tokens)
        discarded = sum(cost.tokens for cost in self.costs[count : count + 1])
        return TurnSearchResult(self.rollouts[:count], self.ratings[:count], self.costs[:count], discarded)

    @property
    def _best(self) -> int:
        ratings = [rating_key(rating) for rating in self.ratings]
        return ratings.index(max(ratings))


class TurnSearch:
    """Searches with any settings from the same first rollouts, with the same random numbers each time."""

    def __init__(self, simulator: BaseSimulator, purpose: Purpose = "eval") -> None:
        self._simulator = simulator
        self._purpose: Purpose = purpose

    def __call__(self, firsts: Sequence[Trajectory], settings: TurnSearchSettings) -> list[TurnSearchResult]:
        """Return the result of a search for each of the episodes `firsts`, played without search.

        Raises:
            ValueError: if the rating role gives no score of this name.
            GameError: if a game raises.
        """
        searches = [_ProblemSearch(first, settings, self._purpose) for first in firsts]
        try:
            while True:
                forks: list[Fork] = []
                unfinished: list[_ProblemSearch] = []
                for search in searches:
                    if search.next_fork is not None:
                        forks.append(search.next_fork)
                        unfinished.append(search)
                if not forks:
                    break
                for search, rollouts in zip(unfinished, self._simulator.play_forks(forks), strict=True):
                    search.add(rollouts)
        finally:
            # A later search numbers its continuations from 1 again, and so gets the same random numbers.
            for search in searches:
                self._simulator.forget_branches(search.rollouts)
        return [search.result() for search in searches]


class _ProblemSearch:
    """The search of one problem, with its rollouts and their costs."""

    def __init__(self, first: Trajectory, settings: TurnSearchSettings, purpose: Purpose) -> None:
        self._settings, self._rating = settings, RolloutRating(settings.by, settings.verdicts)
        self.rollouts = [first]
        self._costs = [_cost(first)]
        self._rule: TurnRule
        match settings.rule:
            case "best_of_n":
                self._rule = best_of_n(first, purpose)
            case "beam":
                self._rule = beam(first, settings, self._rating, self._searched, purpose)
            case "tree":
                self._rule = tree(first, settings, self._rating, self._searched, purpose)
        self.next_fork: Fork | None = None
        """Fork to be played next, or None at the end of the search."""
        # Where nothing can be sampled again, all rollouts would be the same, and some searches would never end.
        if next_branch_index(first, 0, self._searched) is not None and self._costs[0].tokens < settings.tokens:
            self.next_fork = next(self._rule)

    def _searched(self, turn: Turn) -> bool:
        """Return True for a turn whose answers are searched."""
        # Never the rating role's turns: a search with several verdicts of a judge would choose lucky verdicts.
        roles = self._settings.roles
        chosen = turn.role in roles if roles else turn.role != self._rating.role
        return chosen and turn.request.sampling.temperature > 0 and sampled_tokens(turn.completion) > 0

    def add(self, rollouts: Sequence[Trajectory]) -> None:
        """Add the rollouts of `next_fork`, and continue unless the budget is spent."""
        costs = [_cost(rollout) for rollout in rollouts]
        self.rollouts += rollouts
        self._costs += costs
        spent = sum(cost.tokens for cost in self._costs)
        # Without rollouts the game raised, and there is nothing to continue. Rollouts without cost would never end.
        ended = not rollouts or not any(cost.tokens for cost in costs)
        self.next_fork = None if ended or spent >= self._settings.tokens else self._rule.send(list(rollouts))

    def result(self) -> TurnSearchResult:
        """Return the result after the end of the search."""
        count = _count_within(self._costs, self._settings.tokens)
        rollouts = tuple(self.rollouts[:count])
        ratings = tuple(self._rating.rate(rollout) for rollout in rollouts)
        discarded = sum(cost.tokens for cost in self._costs[count:])
        return TurnSearchResult(rollouts, ratings, tuple(self._costs[:count]), discarded)


def _cost(rollout: Trajectory) -> RolloutCost:
    tokens = prompt_tokens = 0
    for turn in rollout.turns:
        if turn.id[0] != rollout.id:
            continue  # inherited from another rollout
        completion = turn.completion
        tokens += sampled_tokens(completion)
        prompt_tokens += len(completion.prompt_ids) or (completion.usage.prompt_tokens if completion.usage else 0)
    return RolloutCost(tokens, prompt_tokens)


def _count_within(costs: Sequence[RolloutCost], tokens: int) -> int:
    """Return the number of rollouts finished within a budget of `tokens`, at least 1."""
    spent = 0
    for number, cost in enumerate(costs):
        spent += cost.tokens
        if spent > tokens:
            return max(number, 1)
    return len(costs)
