"""Evaluations of positions: a prior by the policies that speak there, and values by playing on to the end."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from marl.config import Sampling
from marl.protocols import Critic, Simulator
from marl.search.planner import Evaluation, Leaf, sharpened
from marl.search.positions import SearchPosition, normalised
from marl.search.settings import SearchSettings
from marl.types import Completion, Purpose, Request, Turn

_PromptKey = tuple[object, ...]


class PolicyPrior:
    """Probabilities of legal moves under the policies of the roles to move, each asked by its role's own prompt.

    Equal prompts are scored once in its life, in which weights must not change.
    """

    def __init__(self, simulator: Simulator, purpose: Purpose) -> None:
        self._simulator = simulator
        self._purpose: Purpose = purpose
        self._scored: dict[_PromptKey, dict[str, Completion]] = {}

    def __call__(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        """Return the prior of each position, in the order of its moves: the probability that the policy says exactly
        the move's canonical text, normalised over legal moves; uniform if it says none of them."""
        answers = self.answers([position.request() for position in positions])
        for position, by_move in zip(positions, answers, strict=True):
            if position.decision:
                position.decision.answers[position.key] = by_move
        return [
            normalised([_probability(by_move[move]) for move in position.moves])
            for position, by_move in zip(positions, answers, strict=True)
        ]

    def answers(self, requests: Sequence[Request]) -> list[dict[str, Completion]]:
        """Return, for each request, legal move -> the completion that says it, with its log-probabilities.

        A move whose text could not be scored has a completion without tokens.
        """
        missing = {_prompt(request): request for request in requests if _prompt(request) not in self._scored}
        texts = [(key, move, text) for key, each in missing.items() for move, text in (each.options or {}).items()]
        forced = [replace(missing[key], forced=text) for key, _, text in texts]
        scores = self._simulator.score(forced, self._purpose) if forced else []
        for (key, move, text), score in zip(texts, scores, strict=True):
            answer = score if isinstance(score, Completion) else Completion(text, (), (), (), "stop")
            self._scored.setdefault(key, {})[move] = answer
        return [self._scored[_prompt(request)] for request in requests]


class CriticValues:
    """Values of positions by the critic of whoever is to move there; in a zero-sum game of two the other agent's is the
    opposite.

    Prompts are valued once in its life, in which weights must not change.
    """

    def __init__(self, critic: Critic, prior: PolicyPrior) -> None:
        """`prior` knows the tokens of prompts."""
        self._critic, self._prior = critic, prior
        self._valued: dict[tuple[str, tuple[int, ...]], float] = {}

    def __call__(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        """Return what each agent is expected to be paid from each position on."""
        requests = [position.request() for position in positions]
        answers = self._prior.answers(requests)
        turns = [_read_turn(*each) for each in zip(positions, requests, answers, strict=True)]
        missing = {key: turn for turn in turns if (key := _critic_key(turn)) not in self._valued}
        self._valued |= zip(missing, self._critic(list(missing.values())), strict=True)
        values = [self._valued[_critic_key(turn)] for turn in turns]
        return [
            [value if agent == position.mover else -value for agent in range(len(position.agents))]
            for position, value in zip(positions, values, strict=True)
        ]


def _critic_key(turn: Turn) -> tuple[str, tuple[int, ...]]:
    return turn.role, turn.completion.prompt_ids


def _read_turn(position: SearchPosition, request: Request, answers: Mapping[str, Completion]) -> Turn:
    """Return a turn that says any move, for a critic that reads the state before it.

    Raises:
        ValueError: if the policy could score no move, so that the tokens of its prompt are not known.
    """
    scored = next((answer for answer in answers.values() if answer.token_ids), None)
    if scored is None:
        raise ValueError(
            f"search: values: 'critic', but policy {request.policy!r} could score no legal move of {position.key[0]}: "
            "is its prompt longer than the model's context? choices: values: rollouts"
        )
    opening = replace(scored, token_ids=scored.token_ids[:1], logprobs=scored.logprobs[:1])
    agent, attempt, _ = position.key
    assert position.decision
    episode = position.decision.episode.trajectory
    # Values do not depend on how answers are sampled; what is sampled greedily could not be read.
    plain = replace(request, sampling=Sampling())
    return Turn((episode.id, len(episode.turns)), agent, 0, attempt, episode.deal.seats[agent], plain, opening, None)


def _prompt(request: Request) -> _PromptKey:
    """Return all that the score of a text depends on."""
    options = tuple((request.options or {}).items())
    return request.policy, request.messages, request.continues, request.state, request.sampling, options


def _probability(answer: Completion) -> float:
    return math.exp(math.fsum(answer.logprobs)) if answer.token_ids else 0.0


class RolloutEvaluator:
    """Prior by policies, or none, and the mean return of plays from a position to the end of the game, or a critic's
    value."""

    def __init__(
        self, settings: SearchSettings, prior: PolicyPrior | None = None, critic: CriticValues | None = None
    ) -> None:
        """Without a `prior`, no policy is asked: that of every position is uniform, and plays are random. With a
        `critic`, nothing is played."""
        self._settings, self._prior, self._critic = settings, prior, critic

    def __call__(self, leaves: Sequence[Leaf]) -> list[Evaluation]:
        """Return an evaluation of each position."""
        positions = [leaf.position for leaf in leaves]
        priors = self._priors(positions)
        if self._critic:
            values = self._critic(positions)
        elif self._prior and self._settings.rollouts == "policy":
            values = self._by_policy(leaves)
        else:
            values = [self._at_random(leaf) for leaf in leaves]
        return list(map(Evaluation, priors, values))

    def _priors(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        if self._prior and self._settings.prior == "policy":
            return [sharpened(prior, self._settings.prior_temperature) for prior in self._prior(positions)]
        return [[1 / len(position.moves)] * len(position.moves) for position in positions]

    def _at_random(self, leaf: Leaf) -> list[float]:
        ends = []
        for _ in range(self._settings.repeats):
            with leaf.position.guard("then random moves"):
                play = leaf.position.copy()
                while not play.over:
                    play.play(_pick(play.moves, leaf.rng))
            ends.append(play.paid)
        return _mean_from(leaf.position, ends)

    def _by_policy(self, leaves: Sequence[Leaf]) -> list[list[float]]:
        """Play all positions on side by side, so that each round of moves is one batch for the policies."""
        assert self._prior
        plays = [[leaf.position] * self._settings.repeats for leaf in leaves]
        while going := [(i, j) for i, ends in enumerate(plays) for j, end in enumerate(ends) if not end.over]:
            priors = self._prior([plays[i][j] for i, j in going])
            for (i, j), chances in zip(going, priors, strict=True):
                position = plays[i][j]
                plays[i][j] = position.after(leaves[i].rng.choices(position.moves, chances)[0])
        return [_mean_from(leaf.position, [end.paid for end in ends]) for leaf, ends in zip(leaves, plays, strict=True)]


def _pick(moves: Sequence[str], rng: random.Random) -> str:
    """Return one of the moves, each as likely; five times as fast as `rng.choice`."""
    return moves[int(rng.random() * len(moves))]


def _mean_from(position: SearchPosition, ends: Sequence[Sequence[float]]) -> list[float]:
    """Return what each agent gets from a position on, the mean over plays."""
    return [math.fsum(paid) / len(ends) - before for *paid, before in zip(*ends, position.paid, strict=True)]
