"""Play with search: in these episodes, some roles choose their moves by tree search instead of sampling."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Completion, Deal, ImitationTarget, Metrics, Purpose, Request
from marl.protocols import GameConfig
from marl.rollout.base import BaseSimulator
from marl.rollout.episode import Episode, GameError
from marl.search.determinization import determinizations
from marl.search.evaluators import CriticValues, PolicyPrior, RolloutEvaluator
from marl.search.mcts import LeafEvaluator, Search, SearchResult, apply_temperature, draw, search, search_all
from marl.search.positions import DecisionContext, SearchPosition
from marl.search.settings import SearchSettings

_MIN_SHARE = 0.01
"""Minimum probability of a move among the training targets: rarer moves are not worth a forward pass."""
Question = tuple[Episode, str, Request]
"""An episode, the agent to answer, and its request."""


@dataclass(frozen=True, slots=True)
class SearchSeats:
    """Roles with search, and the roles assumed in all seats by a search."""

    searching: Collection[str]
    seats: Mapping[str, str]
    """Agent -> role: a search plans against these roles, whatever the real opponents are."""


class SearchPlayer:
    """Plays episodes of one game with search, all in parallel: new positions of all their trees form one batch.

    Weights must not change during the life of this object. Its turns look like turns of ordinary play: the request is
    the role's own, and the completion is the text of the chosen move with the policy's log-probabilities.
    """

    def __init__(
        self,
        simulator: BaseSimulator,
        settings: SearchSettings,
        seating: SearchSeats,
        *,
        purpose: Purpose = "eval",
        evaluate: LeafEvaluator | None = None,
        targets: bool = False,
    ) -> None:
        """`evaluate` replaces policies, critics and rollouts. `targets`: add the search's policy to completions.

        Raises:
            ValueError: if `settings` ask for a critic and there is none, or none can value the game.
        """
        self._simulator, self._settings, self._seating = simulator, settings, seating
        self._purpose: Purpose = purpose
        self._targets = targets
        self._prior = PolicyPrior(simulator, purpose)
        self._evaluate = evaluate or RolloutEvaluator(settings, self._prior, self._critic_values())
        self._dropped: set[Episode] = set()
        self.results: list[SearchResult] = []
        """Results of all decisions so far."""

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]:
        """Return the episodes of `deals`, in order, without dropped ones.

        Raises:
            ValueError: if a role with search may say any text, or moves together with other agents.
            GameError: if a game raises, in an episode or in a search, and no more episodes may be dropped
                (`schedule.max_drops`).
        """
        simulator = self._simulator
        episodes: list[Episode] = []
        for deal in deals:
            try:
                episodes.append(Episode(simulator.games[deal.game].build(), deal, simulator.casting))
            except GameError as error:
                simulator.drop(error)
        while True:
            unfinished = [episode for episode in episodes if not (episode.done or episode in self._dropped)]
            if not unfinished:
                return [episode.trajectory for episode in episodes if episode not in self._dropped]
            searched: list[Question] = []
            sampled: list[Question] = []
            for episode in unfinished:
                with self._dropping(episode):
                    seats = episode.trajectory.deal.seats
                    for agent, request in episode.new_requests():
                        questions = searched if seats[agent] in self._seating.searching else sampled
                        questions.append((episode, agent, request))
            self._sample(sampled)
            self._search(searched)

    @contextmanager
    def _dropping(self, episode: Episode) -> Iterator[None]:
        """Drop `episode` if its game raises in this context.

        Raises:
            GameError: if no more episodes may be dropped.
        """
        try:
            yield
        except GameError as error:
            self._simulator.drop(error)
            self._dropped.add(episode)

    def _critic_values(self) -> CriticValues | None:
        """Return values by the run's critics, or None if the settings do not ask for them."""
        if self._settings.values != "critic":
            return None
        for name, config in self._simulator.games.items():
            if problem := critic_obstacle(config):
                raise ValueError(f"search: values: 'critic', but game {name or config.kind!r} {problem}")
        if self._simulator.critic is None:
            raise ValueError("search: values: 'critic', but no learner with a critic is here; choices: rollouts")
        return CriticValues(self._simulator.critic, self._prior)

    def decide(self, episodes: Sequence[Episode]) -> list[SearchResult]:
        """Return the result of a search for the agent to move in each episode."""
        decisions = [self._searches(episode) for episode in episodes]
        searches: list[Search] = []
        for weighted_searches, _ in decisions:
            searches += [determinized for _, determinized in weighted_searches]
        remaining_results = iter(search_all(searches, self._evaluate))
        results: list[SearchResult] = []
        for weighted_searches, rng in decisions:
            weighted_results = [(weight, next(remaining_results)) for weight, _ in weighted_searches]
            results.append(_averaged(weighted_results, self._settings, rng))
        self.results += results
        return results

    def _sample(self, questions: Sequence[Question]) -> None:
        answers = self._simulator.ask([request for _, _, request in questions], self._purpose)
        for (episode, agent, _), answer in zip(questions, answers, strict=True):
            with self._dropping(episode):
                if not episode.done:
                    episode.answer(agent, answer)

    def _search(self, questions: Sequence[Question]) -> None:
        for episode, agent, _ in questions:
            if agent != episode.game.agent_selection:
                raise ValueError(
                    f"search: {agent} is asked together with {episode.game.agent_selection}; a search needs a game in "
                    "which agents move one after the other"
                )
        decided = self._decided(questions)
        scored = self._prior.answers([request for (_, _, request), _ in decided])
        for ((episode, agent, request), result), by_move in zip(decided, scored, strict=True):
            text = (request.options or {})[result.chosen]
            targets = policy_targets(result, self._settings, by_move) if self._targets else ()
            with self._dropping(episode):
                episode.answer(agent, replace(by_move[result.chosen], text=text, targets=targets))

    def _decided(self, questions: Sequence[Question]) -> list[tuple[Question, SearchResult]]:
        """Return the questions with their search results, without those of dropped episodes."""
        try:
            return list(zip(questions, self.decide([episode for episode, _, _ in questions]), strict=True))
        except GameError:
            # An error in the joint search does not say in whose episode. Searched one by one, each failing episode is
            # dropped, and the others decide as before: a decision's random numbers are its own.
            decided: list[tuple[Question, SearchResult]] = []
            for question in questions:
                with self._dropping(question[0]):
                    decided.append((question, self.decide([question[0]])[0]))
            return decided

    def _searches(self, episode: Episode) -> tuple[list[tuple[float, Search]], random.Random]:
        """Return the searches of a decision with their weights, and its random number generator."""
        deal, settings, simulator = episode.trajectory.deal, self._settings, self._simulator
        seed = seed_of(
            simulator.casting.seed, "search", deal.purpose, deal.episode, deal.branch, len(episode.trajectory.turns)
        )
        rng = random.Random(seed)
        decision = DecisionContext(episode.copy(episode.game, {**deal.seats, **self._seating.seats}))
        states = determinizations(simulator.games[deal.game], episode, settings.determinizations, rng)
        share = settings.model_copy(update={"simulations": max(1, settings.simulations // len(states))})
        searches: list[tuple[float, Search]] = []
        for weight, game in states:
            root = SearchPosition(game, decision=decision)
            searches.append((weight, search(root, share, random.Random(rng.getrandbits(63)))))
        return searches, rng


def critic_obstacle(game: GameConfig) -> str | None:
    """Return the reason against a critic for `game`, as a phrase after its name, or None if a critic can value it."""
    agents = len(game.build().possible_agents)
    if agents == 1 or (agents == 2 and game.is_zero_sum()):
        return None
    return (
        "is no zero-sum game of two, so that the value of whoever is to move does not tell what others get; "
        "choices: rollouts"
    )


def target_policy(result: SearchResult, settings: SearchSettings) -> list[float]:
    """Return the training target of a policy: the distribution from which the search drew its move."""
    if settings.rule == "gumbel":
        return list(result.policy)
    return apply_temperature(result.policy, settings.temperature)


def policy_targets(
    result: SearchResult, settings: SearchSettings, answers: Mapping[str, Completion]
) -> tuple[ImitationTarget, ...]:
    """Return the completions of the moves of `target_policy`, with their shares.

    Moves with less than `_MIN_SHARE` are left out, and moves without tokens, whose text the policy could not score.
    """
    scored: list[tuple[tuple[int, ...], float]] = []
    for move, share in zip(result.moves, target_policy(result, settings), strict=True):
        tokens = answers[move].token_ids
        if share >= _MIN_SHARE and tokens:
            scored.append((tokens, share))
    total = math.fsum(share for _, share in scored)
    return tuple([ImitationTarget(tokens, share / total) for tokens, share in scored])


def search_metrics(results: Sequence[SearchResult]) -> Metrics:
    """Return metrics of decisions, as means over decisions with at least two moves: the entropy (nats) of the search's
    policy and of the prior, and the share of decisions for the prior's most likely move."""
    if not results:
        return {}
    decided = [result for result in results if len(result.moves) > 1] or results
    return {
        "search/decisions": float(len(results)),
        "search/entropy": fmean(_entropy(result.policy) for result in decided),
        "search/prior_entropy": fmean(_entropy(result.prior) for result in decided),
        "search/agreement": fmean(_favourite(result) == result.chosen for result in decided),
    }


def _averaged(
    results: Sequence[tuple[float, SearchResult]], settings: SearchSettings, rng: random.Random
) -> SearchResult:
    """Return the only result of a decision, or the weighted mean of several determinizations."""
    first = results[0][1]
    if len(results) == 1:
        return first
    policy: list[float] = []
    values: list[float | None] = []
    visits: list[int] = []
    for move in range(len(first.moves)):
        policy.append(math.fsum(weight * result.policy[move] for weight, result in results))
        visits.append(sum(result.visits[move] for _, result in results))
        values.append(_weighted_mean([(weight, result.values[move]) for weight, result in results]))
    chosen = first.moves[draw(policy, settings.temperature, rng)]
    return SearchResult(first.moves, tuple(policy), tuple(values), tuple(visits), chosen, first.prior)


def _weighted_mean(weighted_values: Iterable[tuple[float, float | None]]) -> float | None:
    """Return the mean over values except None, or None if there are none or their weight is 0."""
    pairs = [(weight, value) for weight, value in weighted_values if value is not None]
    total = math.fsum(weight for weight, _ in pairs)
    return math.fsum(weight * value for weight, value in pairs) / total if total else None


def _entropy(policy: Sequence[float]) -> float:
    return -math.fsum(p * math.log(p) for p in policy if p > 0)


def _favourite(result: SearchResult) -> str:
    return result.moves[max(range(len(result.prior)), key=result.prior.__getitem__)]
