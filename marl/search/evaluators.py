"""Evaluators of positions: a prior by the policies of the roles to move, and values by rollouts or critics."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from marl.core.config import Sampling
from marl.core.types import Completion, Purpose, Request, Turn
from marl.protocols import Critic, Simulator
from marl.search.mcts import LeafEvaluation, SearchLeaf, apply_temperature
from marl.search.positions import ScoredMoves, SearchPosition, normalise_weights
from marl.search.settings import SearchSettings

_PromptKey = tuple[object, ...]
_CriticKey = tuple[str, tuple[int, ...]]
"""Role of the agent to move, and token ids of its prompt."""


class PolicyPrior:
    """Probabilities of legal moves under the policies of the roles to move, each with its role's own prompt.

    Scores are cached by prompt for the life of this object, during which weights must not change.
    """

    def __init__(self, simulator: Simulator, purpose: Purpose) -> None:
        self._simulator = simulator
        self._purpose: Purpose = purpose
        self._scored: dict[_PromptKey, ScoredMoves] = {}

    def __call__(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        """Return the prior of each position: the policy's probability of each move's exact text, normalised over moves.

        The prior is uniform if no move has a positive probability.
        """
        unscored = [position for position in positions if not self.is_scored(position)]
        answers = self.score_legal_moves(list(map(SearchPosition.request, unscored))) if unscored else []
        for position, by_move in zip(unscored, answers, strict=True):
            position.scored_moves[position.request_key] = by_move
        priors: list[list[float]] = []
        for position in positions:
            probabilities = position.scored_moves[position.request_key].probabilities
            priors.append(normalise_weights([probabilities[move] for move in position.moves]))
        return priors

    def is_scored(self, position: SearchPosition) -> bool:
        """Return True if the moves of `position` have been scored, so that its prior needs no engine."""
        if position.request_key in position.scored_moves:
            return True
        by_move = self._scored.get(_scoring_cache_key(position.request()))
        if by_move is not None:
            position.scored_moves[position.request_key] = by_move
        return by_move is not None

    def score_legal_moves(self, requests: Sequence[Request]) -> list[ScoredMoves]:
        """Return, for each request, legal move -> its completion, with log-probabilities.

        The completion of a move whose text could not be scored has no tokens.
        """
        missing: dict[_PromptKey, Request] = {}
        for request in requests:
            key = _scoring_cache_key(request)
            if key not in self._scored:
                missing[key] = request
        options: list[tuple[_PromptKey, str, str]] = []
        forced: list[Request] = []
        for key, request in missing.items():
            for move, text in (request.options or {}).items():
                options.append((key, move, text))
                forced.append(replace(request, forced=text, purpose=self._purpose))
        scores = self._simulator.score_forced_texts(forced, self._purpose) if forced else []
        for (key, move, text), score in zip(options, scores, strict=True):
            answer = score if isinstance(score, Completion) else Completion(text, (), (), (), "stop")
            self._scored.setdefault(key, ScoredMoves())[move] = answer
        return [self._scored[_scoring_cache_key(request)] for request in requests]


class CriticValues:
    """Values of positions by the critic of the agent to move. The other agent of a zero-sum game has the negated value.

    Values are cached by prompt for the life of this object, during which weights must not change.
    """

    def __init__(self, critic: Critic, prior: PolicyPrior) -> None:
        """Create the values of `critic`, with prompts tokenized by the policies of `prior`."""
        self._critic, self._prior = critic, prior
        self._values: dict[_CriticKey, float] = {}

    def __call__(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        """Return, for each position, the expected return of every agent from that position on."""
        requests = list(map(SearchPosition.request, positions))
        keys: list[_CriticKey] = []
        missing: dict[_CriticKey, Turn] = {}
        for position, request, answers in zip(
            positions, requests, self._prior.score_legal_moves(requests), strict=True
        ):
            turn = _turn_for_critic(position, request, answers)
            key = turn.role, turn.completion.prompt_ids
            keys.append(key)
            if key not in self._values:
                missing[key] = turn
        self._values |= zip(missing, self._critic(list(missing.values())), strict=True)
        values: list[list[float]] = []
        for position, key in zip(positions, keys, strict=True):
            mover_value = self._values[key]
            agent_values = [-mover_value] * len(position.agents)
            agent_values[position.mover] = mover_value
            values.append(agent_values)
        return values


def _turn_for_critic(position: SearchPosition, request: Request, answers: Mapping[str, Completion]) -> Turn:
    """Return a turn with the first scored move, from which a critic reads the state before the turn.

    Raises:
        ValueError: if the policy could score no move, so that the tokens of its prompt are unknown.
    """
    scored = next((answer for answer in answers.values() if answer.token_ids), None)
    if scored is None:
        raise ValueError(
            f"search: values: 'critic', but policy {request.policy!r} could score no legal move of "
            f"{position.request_key[0]}: is its prompt longer than the model's context? choices: values: rollouts"
        )
    first_token = replace(scored, token_ids=scored.token_ids[:1], logprobs=scored.logprobs[:1])
    agent, attempt, _ = position.request_key
    assert position.decision
    episode = position.decision.episode.trajectory
    # Sampling settings are reset: they do not change values, and a learner refuses turns sampled greedily.
    plain = replace(request, sampling=Sampling())
    turn_id = episode.id, len(episode.turns)
    return Turn(turn_id, agent, 0, attempt, episode.deal.seats[agent], plain, first_token, None)


def _scoring_cache_key(request: Request) -> _PromptKey:
    """Return the fields of `request` on which the score of a text depends."""
    options = tuple((request.options or {}).items())
    return request.policy, request.messages, request.continues, request.state, request.sampling, options


class RolloutOrCriticEvaluator:
    """Evaluator of leaves: a policy or uniform prior, and values by a critic or by rollouts to the end of the game."""

    def __init__(
        self, settings: SearchSettings, prior: PolicyPrior | None = None, critic: CriticValues | None = None
    ) -> None:
        """Without `prior`, priors are uniform and rollouts random. With `critic`, its values replace rollouts."""
        self._settings, self._prior, self._critic = settings, prior, critic
        by_policy = prior is not None and settings.prior == "policy"
        self._policy_prior = prior if by_policy else None
        self._defers_priors = by_policy and critic is None and settings.rollouts == "random"

    def __call__(self, leaves: Sequence[SearchLeaf]) -> list[LeafEvaluation]:
        """Return the prior and the values of each leaf.

        If random rollouts give the values, a policy's prior is deferred: the search asks for it only when a simulation
        goes beyond the position, so that no model scores the many positions that have one visit.
        """
        priors = self._prior_of_each(leaves)
        values = iter(self._values_of_each([leaf for leaf in leaves if not leaf.prior_only]))
        evaluations: list[LeafEvaluation] = []
        for leaf, prior in zip(leaves, priors, strict=True):
            evaluations.append(LeafEvaluation(prior, () if leaf.prior_only else next(values)))
        return evaluations

    def needs_no_batch(self, leaf: SearchLeaf) -> bool:
        """Return True if the evaluation of `leaf` needs no engine and no critic."""
        if self._critic or (self._prior and self._settings.rollouts == "policy"):
            return False
        prior = self._policy_prior
        return prior is None or self._is_prior_deferred(leaf) or prior.is_scored(leaf.position)

    def _is_prior_deferred(self, leaf: SearchLeaf) -> bool:
        return self._defers_priors and not leaf.prior_only

    def _prior_of_each(self, leaves: Sequence[SearchLeaf]) -> list[Sequence[float]]:
        """Return the prior of each leaf, or an empty one if it is deferred."""
        if not self._policy_prior:
            return [[1 / len(leaf.position.moves)] * len(leaf.position.moves) for leaf in leaves]
        asked = [leaf.position for leaf in leaves if not self._is_prior_deferred(leaf)]
        temperature = self._settings.prior_temperature
        priors = iter([apply_temperature(prior, temperature) for prior in self._policy_prior(asked)])
        return [() if self._is_prior_deferred(leaf) else next(priors) for leaf in leaves]

    def _values_of_each(self, leaves: Sequence[SearchLeaf]) -> list[list[float]]:
        """Return, for each leaf, the expected return of every agent from the leaf's position on."""
        if self._critic:
            return self._critic([leaf.position for leaf in leaves])
        if self._prior and self._settings.rollouts == "policy":
            rollouts_by_leaf: list[list[tuple[float, ...]]] = []
            for positions_at_end in self._policy_rollouts(leaves, self._prior):
                rollouts_by_leaf.append([end.returns for end in positions_at_end])
        else:
            rollouts_by_leaf = list(map(self._random_rollouts, leaves))
        values: list[list[float]] = []
        for leaf, rollouts in zip(leaves, rollouts_by_leaf, strict=True):
            # Rollout returns count from the root, so the returns up to the leaf are subtracted.
            by_agent = zip(zip(*rollouts, strict=True), leaf.position.returns, strict=True)
            values.append([math.fsum(returns) / len(rollouts) - before for returns, before in by_agent])
        return values

    def _random_rollouts(self, leaf: SearchLeaf) -> list[tuple[float, ...]]:
        """Return each agent's return from the root in rollouts from `leaf` with uniformly random moves."""
        rollouts: list[tuple[float, ...]] = []
        random_number = leaf.rng.random
        for _ in range(self._settings.repeats):
            with leaf.position.game_error_guard("then random moves"):
                later = leaf.position.game.random_returns(random_number)
                if later is not None:
                    rollouts.append(tuple(map(operator.add, leaf.position.returns, later)))
                    continue
                rollout = leaf.position.copy()
                while not rollout.over:
                    # The draw is as uniform as `rng.choice`, but five times as fast.
                    moves = rollout.moves
                    rollout.play(moves[int(random_number() * len(moves))])
            rollouts.append(rollout.returns)
        return rollouts

    def _policy_rollouts(self, leaves: Sequence[SearchLeaf], prior: PolicyPrior) -> list[list[SearchPosition]]:
        """Return, for each leaf, the final positions of rollouts with moves sampled from the policies."""
        rollouts = [[leaf.position] * self._settings.repeats for leaf in leaves]
        while True:
            indices, unfinished = list[tuple[int, int]](), list[SearchPosition]()
            for i, positions in enumerate(rollouts):
                for j, position in enumerate(positions):
                    if not position.over:
                        indices.append((i, j))
                        unfinished.append(position)
            if not unfinished:
                return rollouts
            # The policies answer for all rollouts in one batch per round of moves.
            for (i, j), position, probabilities in zip(indices, unfinished, prior(unfinished), strict=True):
                rollouts[i][j] = position.position_after(leaves[i].rng.choices(position.moves, probabilities)[0])
