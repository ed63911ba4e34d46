"""Play with search: episodes in which some roles do not sample their moves but look for them in a tree."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from marl.graph import Trajectory
from marl.protocols import GameConfig
from marl.rollout.base import BaseSimulator
from marl.rollout.episode import Episode, GameError
from marl.search.determinization import determinizations
from marl.search.evaluators import CriticValues, PolicyPrior, RolloutEvaluator
from marl.search.planner import Evaluate, Search, SearchResult, draw, search, search_all, sharpened
from marl.search.positions import SearchedDecision, SearchPosition
from marl.search.settings import SearchSettings
from marl.seeds import seed_of
from marl.types import Completion, Deal, Metrics, Purpose, Request, Target

_LEAST_SHARE = 0.01
"""Least probability of a move that is worth a forward pass when the policy learns."""
Question = tuple[Episode, str, Request]
"""An episode, the agent that is asked there, and its request."""


@dataclass(frozen=True, slots=True)
class Seating:
    """Roles whose moves are searched for, and whom a search takes to sit in all seats."""

    searching: Collection[str]
    seats: Mapping[str, str]
    """Agent -> role: it plans as if these played on, whoever the opponents really are."""


class SearchPlayer:
    """Plays episodes of one game with search, all at once: new positions of all their trees are one batch.

    Weights must not change in its life. Its turns are those of any episode: the request is the role's own, and the
    completion says the move that the search chose, with the log-probabilities that the policy gives it.
    """

    def __init__(
        self,
        simulator: BaseSimulator,
        settings: SearchSettings,
        seating: Seating,
        *,
        purpose: Purpose = "eval",
        evaluate: Evaluate | None = None,
        targets: bool = False,
    ) -> None:
        """`evaluate` values positions in place of policies, critics and rollouts. With `targets`, completions have the
        search's policy as theirs.

        Raises:
            ValueError: if positions are to be valued by a critic and there is none, or it cannot value the game.
        """
        self._simulator, self._settings, self._seating = simulator, settings, seating
        self._purpose: Purpose = purpose
        self._targets = targets
        self._prior = PolicyPrior(simulator, purpose)
        self._evaluate = evaluate or RolloutEvaluator(settings, self._prior, self._critic_values())
        self._dropped: set[Episode] = set()
        self.results: list[SearchResult] = []
        """All decisions so far."""

    def play(self, deals: Sequence[Deal]) -> list[Trajectory]:
        """Return the episodes of `deals`, in order, without those that were dropped because the game raised.

        Raises:
            ValueError: if a role that searches may say any text, or moves together with others.
            GameError: if a game raises, in an episode or in a line that a search looks at, and no more episodes may be
                dropped (`schedule.max_drops`).
        """
        episodes = [episode for deal in deals if (episode := self._begun(deal))]
        while going := [episode for episode in episodes if not (episode.over or episode in self._dropped)]:
            questions = [question for episode in going for question in self._questions(episode)]
            searched = [question for question in questions if self._searches(question)]
            sampled = [question for question in questions if not self._searches(question)]
            self._sample(sampled)
            self._search(searched)
        return [episode.trajectory for episode in episodes if episode not in self._dropped]

    def _begun(self, deal: Deal) -> Episode | None:
        """Return a new episode; None if the game raised."""
        simulator = self._simulator
        try:
            return Episode(simulator.games[deal.game].build(), deal, simulator.casting)
        except GameError as error:
            simulator.drop(error)
            return None

    @contextmanager
    def _dropping(self, episode: Episode) -> Iterator[None]:
        """Drop an episode if its game raises in this context.

        Raises:
            GameError: if no more episodes may be dropped.
        """
        try:
            yield
        except GameError as error:
            self._simulator.drop(error)
            self._dropped.add(episode)

    def _questions(self, episode: Episode) -> list[Question]:
        """Return what is asked next in an episode; nothing if its game raised."""
        questions: list[Question] = []
        with self._dropping(episode):
            questions += [(episode, agent, request) for agent, request in episode.new_requests()]
        return questions

    def _critic_values(self) -> CriticValues | None:
        """Return values by the run's critics, if they are wanted."""
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
        decisions = [self._searches_of(episode) for episode in episodes]
        flat = iter(search_all([each for group, _ in decisions for _, each in group], self._evaluate))
        weighted_results = [([(weight, next(flat)) for weight, _ in group], rng) for group, rng in decisions]
        results = [_averaged(weighted, self._settings, rng) for weighted, rng in weighted_results]
        self.results += results
        return results

    def _searches(self, question: Question) -> bool:
        episode, agent, _ = question
        return episode.trajectory.deal.seats[agent] in self._seating.searching

    def _sample(self, questions: Sequence[Question]) -> None:
        answers = self._simulator.ask([request for _, _, request in questions], self._purpose)
        for (episode, agent, _), answer in zip(questions, answers, strict=True):
            with self._dropping(episode):
                if not episode.over:
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
        """Return questions with the results of their searches, without those in which the game raised."""
        try:
            return list(zip(questions, self.decide([episode for episode, _, _ in questions]), strict=True))
        except GameError:
            # Searched one by one, it shows in which episodes it did; the others decide as they would have done.
            decided: list[tuple[Question, SearchResult]] = []
            for question in questions:
                with self._dropping(question[0]):
                    decided.append((question, self.decide([question[0]])[0]))
            return decided

    def _searches_of(self, episode: Episode) -> tuple[list[tuple[float, Search]], random.Random]:
        """Return the searches of a decision with their weights, and its random numbers."""
        deal, settings, simulator = episode.trajectory.deal, self._settings, self._simulator
        place = deal.purpose, deal.episode, deal.branch, len(episode.trajectory.turns)
        rng = random.Random(seed_of(simulator.casting.seed, "search", *place))
        decision = SearchedDecision(episode.copy(episode.game, {**deal.seats, **self._seating.seats}))
        games = determinizations(simulator.games[deal.game], episode, settings.determinizations, rng)
        each = settings.model_copy(update={"simulations": max(1, settings.simulations // len(games))})
        roots = [(weight, SearchPosition(game, decision=decision)) for weight, game in games]
        return [(weight, search(root, each, random.Random(rng.getrandbits(63)))) for weight, root in roots], rng


def critic_obstacle(game: GameConfig) -> str | None:
    """Return why a critic cannot value positions of a game, in words that follow its name; None if it can."""
    agents = len(game.build().possible_agents)
    if agents == 1 or (agents == 2 and game.is_zero_sum()):
        return None
    return (
        "is no zero-sum game of two, so that the value of whoever is to move does not tell what others get; "
        "choices: rollouts"
    )


def learnt_policy(result: SearchResult, settings: SearchSettings) -> list[float]:
    """Return the distribution that a policy is to learn from a search: the one from which its move was drawn."""
    if settings.rule == "gumbel":
        return list(result.policy)
    return sharpened(result.policy, settings.temperature)


def policy_targets(
    result: SearchResult, settings: SearchSettings, answers: Mapping[str, Completion]
) -> tuple[Target, ...]:
    """Return the completions that say the moves of `learnt_policy`, with their shares.

    Left out are those of less than `_LEAST_SHARE`, and moves that the policy cannot say.
    """
    shares = zip(result.moves, learnt_policy(result, settings), strict=True)
    scored = [(answers[move].token_ids, share) for move, share in shares if share >= _LEAST_SHARE]
    scored = [(tokens, share) for tokens, share in scored if tokens]
    total = math.fsum(share for _, share in scored)
    return tuple([Target(tokens, share / total) for tokens, share in scored])


def search_metrics(results: Sequence[SearchResult]) -> Metrics:
    """Return figures of decisions, means over those with a choice: entropy (nats) of the search's policy and of the
    prior, and the share of them in which the move is the prior's most likely one."""
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
    """Return the result of a decision: that of its only search, or the weighted mean of several."""
    if len(results) == 1:
        return results[0][1]
    first = results[0][1]
    columns = zip(*(result.policy for _, result in results), strict=True)
    weights = [weight for weight, _ in results]
    policy = tuple(math.fsum(w * p for w, p in zip(weights, column, strict=True)) for column in columns)
    visits = tuple(map(sum, zip(*(result.visits for _, result in results), strict=True)))
    values = tuple(_mean_of_known([(w, result.values[i]) for w, result in results]) for i in range(len(first.moves)))
    chosen = first.moves[draw(policy, settings.temperature, rng)]
    return SearchResult(first.moves, policy, values, visits, chosen, first.prior)


def _mean_of_known(values: Iterable[tuple[float, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in values if value is not None]
    total = math.fsum(weight for weight, _ in known)
    return math.fsum(weight * value for weight, value in known) / total if total else None


def _entropy(policy: Sequence[float]) -> float:
    return -math.fsum(p * math.log(p) for p in policy if p > 0)


def _favourite(result: SearchResult) -> str:
    return result.moves[max(range(len(result.prior)), key=result.prior.__getitem__)]
