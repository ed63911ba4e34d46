"""Evaluators of positions: a prior by the policies of the roles to move, and values by rollouts or critics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from marl.core.config import Sampling
from marl.core.types import Completion, Purpose, Request, Turn
from marl.protocols import Critic, Simulator
from marl.search.mcts import Leaf, LeafEvaluation, apply_temperature
from marl.search.positions import SearchPosition, normalised
from marl.search.settings import SearchSettings

_PromptKey = tuple[object, ...]


class PolicyPrior:
    """Probabilities of legal moves under the policies of the roles to move, each with its role's own prompt.

    Scores are cached by prompt for the life of this object, during which weights must not change.
    """

    def __init__(self, simulator: Simulator, purpose: Purpose) -> None:
        self._simulator = simulator
        self._purpose: Purpose = purpose
        self._scored: dict[_PromptKey, dict[str, Completion]] = {}

    def __call__(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        """Return the prior of each position: the policy's probability of each move's exact text, normalised over moves.

        The prior is uniform if no move has a positive probability.
        """
        answers = self.answers([position.request() for position in positions])
        priors: list[list[float]] = []
        for position, by_move in zip(positions, answers, strict=True):
            if position.decision:
                position.decision.answers[position.key] = by_move
            priors.append(normalised([_probability(by_move[move]) for move in position.moves]))
        return priors

    def answers(self, requests: Sequence[Request]) -> list[dict[str, Completion]]:
        """Return, for each request, legal move -> its completion, with log-probabilities.

        The completion of a move whose text could not be scored has no tokens.
        """
        missing: dict[_PromptKey, Request] = {}
        for request in requests:
            key = _prompt(request)
            if key not in self._scored:
                missing[key] = request
        moves: list[tuple[_PromptKey, str, str]] = []
        for key, request in missing.items():
            moves += [(key, move, text) for move, text in (request.options or {}).items()]
        forced = [replace(missing[key], forced=text) for key, _, text in moves]
        scores = self._simulator.score(forced, self._purpose) if forced else []
        for (key, move, text), score in zip(moves, scores, strict=True):
            answer = score if isinstance(score, Completion) else Completion(text, (), (), (), "stop")
            self._scored.setdefault(key, {})[move] = answer
        return [self._scored[_prompt(request)] for request in requests]


class CriticValues:
    """Values of positions by the critic of the agent to move. In a zero-sum game of two, the other agent's is the
    opposite.

    Values are cached by prompt for the life of this object, during which weights must not change.
    """

    def __init__(self, critic: Critic, prior: PolicyPrior) -> None:
        """`prior` supplies the tokens of prompts."""
        self._critic, self._prior = critic, prior
        self._values: dict[tuple[str, tuple[int, ...]], float] = {}

    def __call__(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        """Return each agent's expected return from each position on."""
        requests = [position.request() for position in positions]
        turns: list[Turn] = []
        missing: dict[tuple[str, tuple[int, ...]], Turn] = {}
        for position, request, answers in zip(positions, requests, self._prior.answers(requests), strict=True):
            turn = _critic_turn(position, request, answers)
            turns.append(turn)
            if _critic_key(turn) not in self._values:
                missing[_critic_key(turn)] = turn
        self._values |= zip(missing, self._critic(list(missing.values())), strict=True)
        values: list[list[float]] = []
        for position, turn in zip(positions, turns, strict=True):
            value = self._values[_critic_key(turn)]
            values.append([value if agent == position.mover else -value for agent in range(len(position.agents))])
        return values


def _critic_key(turn: Turn) -> tuple[str, tuple[int, ...]]:
    return turn.role, turn.completion.prompt_ids


def _critic_turn(position: SearchPosition, request: Request, answers: Mapping[str, Completion]) -> Turn:
    """Return a turn with any one of the moves, for a critic of the state before the turn.

    Raises:
        ValueError: if the policy could score no move, so that the tokens of its prompt are unknown.
    """
    scored = next((answer for answer in answers.values() if answer.token_ids), None)
    if scored is None:
        raise ValueError(
            f"search: values: 'critic', but policy {request.policy!r} could score no legal move of {position.key[0]}: "
            "is its prompt longer than the model's context? choices: values: rollouts"
        )
    first_token = replace(scored, token_ids=scored.token_ids[:1], logprobs=scored.logprobs[:1])
    agent, attempt, _ = position.key
    assert position.decision
    episode = position.decision.episode.trajectory
    # Values do not depend on sampling settings, and a learner refuses to read turns sampled greedily.
    plain = replace(request, sampling=Sampling())
    return Turn(
        (episode.id, len(episode.turns)), agent, 0, attempt, episode.deal.seats[agent], plain, first_token, None
    )


def _prompt(request: Request) -> _PromptKey:
    """Return the fields of `request` on which the score of a text depends."""
    options = tuple((request.options or {}).items())
    return request.policy, request.messages, request.continues, request.state, request.sampling, options


def _probability(answer: Completion) -> float:
    return math.exp(math.fsum(answer.logprobs)) if answer.token_ids else 0.0


class RolloutEvaluator:
    """Leaf evaluator with a prior by policies, or a uniform one, and values by a critic or rollouts to the end."""

    def __init__(
        self, settings: SearchSettings, prior: PolicyPrior | None = None, critic: CriticValues | None = None
    ) -> None:
        """Without a `prior` all priors are uniform and rollouts are random. With a `critic` there are no rollouts."""
        self._settings, self._prior, self._critic = settings, prior, critic

    def __call__(self, leaves: Sequence[Leaf]) -> list[LeafEvaluation]:
        """Return an evaluation of each position."""
        positions = [leaf.position for leaf in leaves]
        if self._prior and self._settings.prior == "policy":
            temperature = self._settings.prior_temperature
            priors = [apply_temperature(prior, temperature) for prior in self._prior(positions)]
        else:
            priors = [[1 / len(position.moves)] * len(position.moves) for position in positions]
        if self._critic:
            values = self._critic(positions)
        elif self._prior and self._settings.rollouts == "policy":
            values = self._policy_rollouts(leaves, self._prior)
        else:
            values = [self._random_rollouts(leaf) for leaf in leaves]
        return list(map(LeafEvaluation, priors, values))

    def _random_rollouts(self, leaf: Leaf) -> list[float]:
        ends: list[Sequence[float]] = []
        random_number = leaf.rng.random
        for _ in range(self._settings.repeats):
            with leaf.position.guard("then random moves"):
                rollout = leaf.position.copy()
                while not rollout.over:
                    # Uniform as `rng.choice`, but five times as fast.
                    moves = rollout.moves
                    rollout.play(moves[int(random_number() * len(moves))])
            ends.append(rollout.returns)
        return _mean_from(leaf.position, ends)

    def _policy_rollouts(self, leaves: Sequence[Leaf], prior: PolicyPrior) -> list[list[float]]:
        """Play on from all positions in parallel, so that each round of moves is one batch for the policies."""
        rollouts = [[leaf.position] * self._settings.repeats for leaf in leaves]
        while True:
            unfinished: list[tuple[int, int]] = []
            for i, ends in enumerate(rollouts):
                unfinished += [(i, j) for j, end in enumerate(ends) if not end.over]
            if not unfinished:
                break
            priors = prior([rollouts[i][j] for i, j in unfinished])
            for (i, j), probabilities in zip(unfinished, priors, strict=True):
                position = rollouts[i][j]
                rollouts[i][j] = position.after(leaves[i].rng.choices(position.moves, probabilities)[0])
        values: list[list[float]] = []
        for leaf, ends in zip(leaves, rollouts, strict=True):
            values.append(_mean_from(leaf.position, [end.returns for end in ends]))
        return values


def _mean_from(position: SearchPosition, ends: Sequence[Sequence[float]]) -> list[float]:
    """Return each agent's mean return from `position` on. `ends`: each rollout's returns since the root."""
    means: list[float] = []
    for agent, before in enumerate(position.returns):
        means.append(math.fsum(end[agent] for end in ends) / len(ends) - before)
    return means
