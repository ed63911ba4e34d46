"""Searches over the turns of teams, which choose among rollouts. Parallel searches play their rollouts in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl.core.graph import Trajectory
from marl.core.types import Fork, Purpose, Turn
from marl.rollout.base import BaseSimulator
from marl.search.rollout_ratings import RolloutRater
from marl.search.settings import TurnSearchSettings
from marl.search.turn_rules import (
    ForkGenerator,
    beam_forks,
    best_of_n_forks,
    next_searched_turn_index,
    rating_sort_key,
    sampled_token_count,
    tree_search_forks,
)


@dataclass(frozen=True, slots=True)
class RolloutTokenCost:
    """Tokens of a rollout's own turns, without the turns shared with an earlier rollout."""

    tokens: int
    """Number of sampled tokens of the rollout's own turns."""
    prompt_tokens: int
    """Number of prompt tokens of these turns. Each prompt counts in full, as if without a prefix cache."""


@dataclass(frozen=True, slots=True)
class TurnSearchResult:
    """Result of a search over the turns of one problem."""

    rollouts: tuple[Trajectory, ...]
    """Rollouts finished within the budget, in the order of their start. The first rollout is play without search."""
    ratings: tuple[float | None, ...]
    """Rating of each rollout, or None without a readable verdict."""
    costs: tuple[RolloutTokenCost, ...]
    """Tokens of each rollout."""
    discarded_tokens: int
    """Number of sampled tokens of rollouts that ended beyond the budget and were not used."""

    @property
    def chosen_rollout(self) -> Trajectory:
        """Rollout with the greatest rating; among equal ratings, the first."""
        return self.rollouts[self._index_of_best_rollout]

    @property
    def chosen_rating(self) -> float | None:
        """Rating of `chosen_rollout`."""
        return self.ratings[self._index_of_best_rollout]

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens of all rollouts within the budget."""
        return sum(cost.tokens for cost in self.costs)

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens of all rollouts within the budget."""
        return sum(cost.prompt_tokens for cost in self.costs)

    def within_token_budget(self, max_tokens: int) -> TurnSearchResult:
        """Return the result of the same search with a smaller budget of `max_tokens` sampled tokens."""
        count = _count_rollouts_within_budget(self.costs, max_tokens)
        discarded = sum(cost.tokens for cost in self.costs[count : count + 1])
        return TurnSearchResult(self.rollouts[:count], self.ratings[:count], self.costs[:count], discarded)

    @property
    def _index_of_best_rollout(self) -> int:
        """Index of `chosen_rollout`."""
        keys = list(map(rating_sort_key, self.ratings))
        return keys.index(max(keys))


class TurnSearch:
    """Searches with any settings from the same first rollouts, with the same random numbers each time."""

    def __init__(self, simulator: BaseSimulator, purpose: Purpose = "eval") -> None:
        self._simulator = simulator
        self._purpose: Purpose = purpose

    def __call__(self, first_rollouts: Sequence[Trajectory], settings: TurnSearchSettings) -> list[TurnSearchResult]:
        """Return the result of a search for each of the episodes `first_rollouts`, played without search.

        Raises:
            ValueError: if the rating role gives no score of this name.
            GameError: if a game raises.
        """
        searches = [_ProblemSearch(first_rollout, settings, self._purpose) for first_rollout in first_rollouts]
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
                    search.add_rollouts(rollouts)
        finally:
            # The numbering restarts, so that a later search of these rollouts draws the same random numbers.
            for search in searches:
                self._simulator.fork_names.restart_fork_numbering(search.rollouts)
        return list(map(_ProblemSearch.build_result, searches))


class _ProblemSearch:
    """Search over the turns of one problem, with its rollouts and their costs so far."""

    def __init__(self, first_rollout: Trajectory, settings: TurnSearchSettings, purpose: Purpose) -> None:
        self._settings, self._rating = settings, RolloutRater(settings.by, settings.verdicts)
        self.rollouts = [first_rollout]
        self._costs = [_token_cost(first_rollout)]
        self._rule: ForkGenerator
        match settings.rule:
            case "best_of_n":
                self._rule = best_of_n_forks(first_rollout, purpose)
            case "beam":
                self._rule = beam_forks(first_rollout, settings, self._rating, self._is_searched, purpose)
            case "tree":
                self._rule = tree_search_forks(first_rollout, settings, self._rating, self._is_searched, purpose)
        self.next_fork: Fork | None = None
        """Fork to be played next, or None at the end of the search."""
        self._spent = self._costs[0].tokens
        # Without a turn to sample again, all rollouts would be equal, and some searches would never end.
        if next_searched_turn_index(first_rollout, 0, self._is_searched) is not None and self._spent < settings.tokens:
            self.next_fork = next(self._rule)

    def _is_searched(self, turn: Turn) -> bool:
        """Return True if the search samples several answers at `turn`."""
        # Searching the rating role would select the most favourable of several verdicts.
        roles = self._settings.roles
        chosen = turn.role in roles if roles else turn.role != self._rating.rating_role
        return chosen and turn.request.sampling.temperature > 0 and sampled_token_count(turn.completion) > 0

    def add_rollouts(self, rollouts: Sequence[Trajectory]) -> None:
        """Add the played rollouts of `next_fork`, and set the next fork unless the token budget is spent."""
        costs = list(map(_token_cost, rollouts))
        self.rollouts += rollouts
        self._costs += costs
        added = sum(cost.tokens for cost in costs)
        self._spent += added
        # Without new tokens the search ends: a game raised, or rollouts without cost would go on for ever.
        ended = not added or self._spent >= self._settings.tokens
        self.next_fork = None if ended else self._rule.send(list(rollouts))

    def build_result(self) -> TurnSearchResult:
        """Return the result of the finished search."""
        count = _count_rollouts_within_budget(self._costs, self._settings.tokens)
        rollouts = tuple(self.rollouts[:count])
        ratings = tuple(map(self._rating.rate_rollout, rollouts))
        discarded = sum(cost.tokens for cost in self._costs[count:])
        return TurnSearchResult(rollouts, ratings, tuple(self._costs[:count]), discarded)


def _token_cost(rollout: Trajectory) -> RolloutTokenCost:
    """Return the numbers of tokens of the turns that are not shared with an earlier rollout."""
    tokens = prompt_tokens = 0
    for turn in rollout.turns:
        if turn.id[0] != rollout.id:
            continue  # inherited turns count for the rollout that played them
        completion = turn.completion
        tokens += sampled_token_count(completion)
        prompt_tokens += len(completion.prompt_ids) or (completion.usage.prompt_tokens if completion.usage else 0)
    return RolloutTokenCost(tokens, prompt_tokens)


def _count_rollouts_within_budget(rollout_costs: Sequence[RolloutTokenCost], token_budget: int) -> int:
    """Return the number of rollouts that end within `token_budget` sampled tokens, at least 1."""
    spent = 0
    for number, cost in enumerate(rollout_costs):
        spent += cost.tokens
        if spent > token_budget:
            return max(number, 1)
    return len(rollout_costs)
