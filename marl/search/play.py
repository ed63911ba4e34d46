"""Play with search: in these episodes, some roles choose their moves by tree search instead of sampling."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

from marl.core.graph import Trajectory
from marl.core.seeds import episode_name_for_seeding, hash_to_seed
from marl.core.types import Completion, Deal, ImitationTarget, Metrics, Purpose, Request
from marl.protocols import GameConfig
from marl.rollout.base import BaseSimulator
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode, GameError
from marl.search.determinization import sample_determinizations
from marl.search.evaluators import CriticValues, PolicyPrior, RolloutOrCriticEvaluator
from marl.search.information_sets import InformationSetTree
from marl.search.mcts import (
    LeafEvaluator,
    SearchGenerator,
    SearchResult,
    apply_temperature,
    draw_move_index,
    run_searches_in_parallel,
    search,
)
from marl.search.positions import MOVES_TOGETHER, DecisionRequestCache, SearchPosition
from marl.search.settings import SearchSettings

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
search/decisions | turns | moves that were searched for (`experience: search`)
search/entropy, search/prior_entropy | nats | of the search's policy and of the policy's own, mean over decisions
    with a choice
search/agreement | share of decisions | the move that the search chose is the one that the policy says most often
"""

_MIN_SHARE = 0.01
"""Minimum probability of a move under the search's policy to be a training target: rarer moves are not worth a forward
pass."""
Question = tuple[Episode, str, Request]
"""(episode, agent to move, request for the agent's move)."""


@dataclass(frozen=True, slots=True)
class SearchRoles:
    """Roles that choose their moves by search, and the role that a search assumes at each seat."""

    searching_roles: Collection[str]
    """Roles that choose their moves by search."""
    assumed_roles: Mapping[str, str]
    """Agent -> role: a search plans against these roles, whatever the real opponents are."""


class SearchPlayer:
    """Plays episodes of one game with search, all in parallel: new positions of all their trees form one batch.

    Weights must not change during the life of this object. The player's turns look like turns of ordinary play: the
    request is the role's own, and the completion is the chosen move's text with the policy's log-probabilities.
    """

    def __init__(
        self,
        simulator: BaseSimulator,
        settings: SearchSettings,
        search_roles: SearchRoles,
        *,
        purpose: Purpose = "eval",
        evaluate: LeafEvaluator | None = None,
        targets: bool = False,
    ) -> None:
        """Create a player.

        Args:
            simulator: simulator with the games and policies.
            settings: settings of the search of each decision.
            search_roles: roles with search, and the roles assumed in all seats.
            purpose: purpose of the requests, for the counts of tokens.
            evaluate: evaluator of leaves (default: by policies, critics and rollouts, as `settings` say).
            targets: True to add the search's policy to completions, as targets of imitation.

        Raises:
            ValueError: if `settings` ask for a critic, but no critic exists or can value the game.
        """
        self._simulator, self._settings, self._search_roles = simulator, settings, search_roles
        self._purpose: Purpose = purpose
        self._targets = targets
        self._prior = PolicyPrior(simulator, purpose)
        critic_values: CriticValues | None = None
        if evaluate is None and settings.values == "critic":
            for name, config in simulator.games.items():
                if problem := reason_critics_cannot_value_positions(config):
                    raise ValueError(f"search: values: 'critic', but game {name or config.kind!r} {problem}")
            if simulator.critic is None:
                raise ValueError("search: values: 'critic', but no learner with a critic is here; choices: rollouts")
            critic_values = CriticValues(simulator.critic, self._prior)
        evaluator = RolloutOrCriticEvaluator(settings, self._prior, critic_values)
        self._evaluate = evaluate or evaluator
        self._needs_no_batch = None if evaluate else evaluator.needs_no_batch
        self._shared_requests: dict[tuple[object, ...], Request] = {}
        self._dropped: set[Episode] = set()
        self.results: list[SearchResult] = []
        """Results of all decisions so far."""

    @property
    def casting(self) -> RoleRequestBuilder:
        """Roles and seed of the simulator."""
        return self._simulator.casting

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
                simulator.count_dropped_episode(error)
        while True:
            unfinished = [episode for episode in episodes if not (episode.done or episode in self._dropped)]
            if not unfinished:
                return [episode.trajectory for episode in episodes if episode not in self._dropped]
            searched: list[Question] = []
            sampled: list[Question] = []
            for episode in unfinished:
                with self._drop_episode_on_error(episode):
                    seats = episode.trajectory.deal.seats
                    for agent, request in episode.take_new_requests():
                        questions = searched if seats[agent] in self._search_roles.searching_roles else sampled
                        questions.append((episode, agent, request))
            answers = simulator.ask([request for _, _, request in sampled], self._purpose)
            for (episode, agent, _), answer in zip(sampled, answers, strict=True):
                with self._drop_episode_on_error(episode):
                    if not episode.done:
                        episode.play_agent_answer(agent, answer)
            self._choose_moves_by_search(searched)

    @contextmanager
    def _drop_episode_on_error(self, episode: Episode) -> Iterator[None]:
        """Drop `episode` if its game raises in this context.

        Raises:
            GameError: if no more episodes may be dropped.
        """
        try:
            yield
        except GameError as error:
            self._simulator.count_dropped_episode(error)
            self._dropped.add(episode)

    def search_next_moves(self, episodes: Sequence[Episode], agents: Sequence[str] | None = None) -> list[SearchResult]:
        """Return the result of a search in each episode, for the agent in `agents` (default: the agent to move).

        Raises:
            ValueError: if several agents move at once, and the settings ask policies or critics.
        """
        settings, simulator = self._settings, self._simulator
        agents = agents or [episode.game.agent_selection for episode in episodes]
        searches: list[SearchGenerator] = []
        decisions: list[tuple[list[float], random.Random]] = []
        for episode, agent in zip(episodes, agents, strict=True):
            mover = episode.game.agent_selection
            together = episode.game.infos[mover]["together"]
            if len(together) > 1 and not settings.asks_nobody:
                raise ValueError(MOVES_TOGETHER.format(agent=together[1]))
            deal, turn_count = episode.trajectory.deal, len(episode.trajectory.turns)
            name = episode_name_for_seeding(deal.episode)
            seed = hash_to_seed(simulator.casting.seed, "search", deal.purpose, name, deal.branch, turn_count)
            # Agents that move at once draw independent random numbers.
            rng = random.Random(seed if agent == mover else hash_to_seed(seed, agent))
            decision = DecisionRequestCache(
                episode.copy(episode.game, {**deal.seats, **self._search_roles.assumed_roles}),
                shared_requests=self._shared_requests,
            )
            config = simulator.games[deal.game]
            if settings.hidden_information == "ismcts" and not (config.has_perfect_information() or len(together) > 1):
                searches.append(_search_information_sets(config, episode, settings, decision, rng))
                decisions.append(([1.0], rng))
                continue
            states = sample_determinizations(config, episode, settings.determinizations or 8, rng, agent)
            # The decision's simulations are divided among its sampled states.
            share = settings.model_copy(update={"simulations": max(1, settings.simulations // len(states))})
            weights: list[float] = []
            for weight, game in states:
                weights.append(weight)
                root = SearchPosition(game, decision=decision)
                searches.append(search(root, share, random.Random(rng.getrandbits(63)), agent))
            decisions.append((weights, rng))

        remaining_results = iter(run_searches_in_parallel(searches, self._evaluate, self._needs_no_batch))
        results: list[SearchResult] = []
        for weights, rng in decisions:
            state_results = list(islice(remaining_results, len(weights)))
            results.append(_average_search_results(weights, state_results, settings, rng))
        self.results += results
        return results

    def _choose_moves_by_search(self, questions: Sequence[Question]) -> None:
        """Choose a move by search for each of `questions`, and drop the episodes whose games raise."""
        agents = [agent for _, agent, _ in questions]
        try:
            results = self.search_next_moves([episode for episode, _, _ in questions], agents)
            decided = list(zip(questions, results, strict=True))
        except GameError:
            # The error of a joint search does not tell whose game failed, so each episode is searched again alone.
            # The other episodes' decisions do not change, because every decision has random numbers of its own.
            decided: list[tuple[Question, SearchResult]] = []
            for question in questions:
                with self._drop_episode_on_error(question[0]):
                    decided.append((question, self.search_next_moves([question[0]], [question[1]])[0]))
        scored = self._prior.score_legal_moves([request for (_, _, request), _ in decided])
        for ((episode, agent, request), result), by_move in zip(decided, scored, strict=True):
            text = (request.options or {})[result.chosen_move]
            targets = imitation_targets_from_search(result, self._settings, by_move) if self._targets else ()
            with self._drop_episode_on_error(episode):
                episode.play_agent_answer(agent, replace(by_move[result.chosen_move], text=text, targets=targets))


def _search_information_sets(
    config: GameConfig, episode: Episode, settings: SearchSettings, decision: DecisionRequestCache, rng: random.Random
) -> SearchGenerator:
    """Return a search over information sets for the agent to move, with a state drawn anew for each simulation."""
    count = settings.simulations
    states = sample_determinizations(config, episode, settings.determinizations or count, rng)
    roots = [SearchPosition(game, decision=decision) for _, game in states]
    weights = [weight for weight, _ in states]
    # As many states of equal weight as simulations are a sample already, and drawing from them would repeat some.
    is_sample = len(roots) == count and min(weights) == max(weights)
    order = roots if is_sample else rng.choices(roots, weights, k=count)
    search_rng = random.Random(rng.getrandbits(63))
    return search(roots[0], settings, search_rng, tree=InformationSetTree(settings, search_rng, iter(order)))


def reason_critics_cannot_value_positions(game: GameConfig) -> str | None:
    """Return the reason for which no critic can value positions of `game`, or None if critics can."""
    agents = len(game.build().possible_agents)
    if agents == 1 or (agents == 2 and game.is_zero_sum()):
        return None
    return (
        "is no zero-sum game of two, so that the value of whoever is to move does not tell what others get; "
        "choices: rollouts"
    )


def search_policy_target(result: SearchResult, settings: SearchSettings) -> list[float]:
    """Return the training target of a policy: the probability of each of `result.moves` when the search drew a move."""
    if settings.rule == "gumbel" or result.is_mixed:
        return list(result.policy)
    return apply_temperature(result.policy, settings.temperature)


def imitation_targets_from_search(
    result: SearchResult, settings: SearchSettings, completion_by_move: Mapping[str, Completion]
) -> tuple[ImitationTarget, ...]:
    """Return the training targets of a decision: the completion of each move with its share of `search_policy_target`.

    `completion_by_move` maps a move to its completion. Moves with less than `_MIN_SHARE` are left out, as are moves
    without tokens, whose text the policy could not score.
    """
    completions, shares = list[tuple[int, ...]](), list[float]()
    for move, share in zip(result.moves, search_policy_target(result, settings), strict=True):
        tokens = completion_by_move[move].token_ids
        if share >= _MIN_SHARE and tokens:
            completions.append(tokens)
            shares.append(share)
    total = math.fsum(shares)
    return tuple([ImitationTarget(tokens, share / total) for tokens, share in zip(completions, shares, strict=True)])


def search_metrics(results: Sequence[SearchResult]) -> Metrics:
    """Return metrics of decisions: the entropies of the search's policy and of the prior [nats], and the agreement.

    Agreement is the share of decisions for the prior's most likely move. All three are means over decisions with at
    least two moves.
    """
    if not results:
        return {}
    entropies, prior_entropies, agreements = [], [], []
    for result in [result for result in results if len(result.moves) > 1] or results:
        entropies.append(_entropy(result.policy))
        prior_entropies.append(_entropy(result.prior))
        agreements.append(result.moves[result.prior.index(max(result.prior))] == result.chosen_move)
    return {
        "search/decisions": float(len(results)),
        "search/entropy": fmean(entropies),
        "search/prior_entropy": fmean(prior_entropies),
        "search/agreement": fmean(agreements),
    }


def _average_search_results(
    weights: Sequence[float], results: Sequence[SearchResult], settings: SearchSettings, rng: random.Random
) -> SearchResult:
    """Return the weighted mean of the results of several determinizations, with a move drawn from their mean policy.

    A single result is returned unchanged.
    """
    first = results[0]
    if len(results) == 1:
        return first
    policy: list[float] = []
    values: list[float | None] = []
    visits: list[int] = []
    for move in range(len(first.moves)):
        shares, products, visited_weights, visit_count = list[float](), list[float](), list[float](), 0
        for weight, result in zip(weights, results, strict=True):
            shares.append(weight * result.policy[move])
            visit_count += result.visits[move]
            # Determinizations in which the move was not visited do not count in its mean value.
            value = result.values[move]
            if value is not None:
                products.append(weight * value)
                visited_weights.append(weight)
        policy.append(math.fsum(shares))
        visits.append(visit_count)
        total = math.fsum(visited_weights)
        values.append(math.fsum(products) / total if total else None)
    chosen = first.moves[draw_move_index(policy, 1.0 if first.is_mixed else settings.temperature, rng)]
    return replace(first, policy=tuple(policy), values=tuple(values), visits=tuple(visits), chosen_move=chosen)


def _entropy(move_probabilities: Sequence[float]) -> float:
    """Return the entropy of move probabilities [nats]."""
    return -math.fsum(p * math.log(p) for p in move_probabilities if p > 0)
