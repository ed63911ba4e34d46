"""Evaluations of positions: a prior by the policies that speak there, and values by playing on to the end."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from marl.protocols import Simulator
from marl.search.planner import Evaluation, Leaf
from marl.search.positions import SearchPosition, normalised
from marl.search.settings import SearchSettings
from marl.types import Completion, Purpose, Request

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


def _prompt(request: Request) -> _PromptKey:
    """Return all that the score of a text depends on."""
    options = tuple((request.options or {}).items())
    return request.policy, request.messages, request.continues, request.state, request.sampling, options


def _probability(answer: Completion) -> float:
    return math.exp(math.fsum(answer.logprobs)) if answer.token_ids else 0.0


class RolloutEvaluator:
    """Prior by policies, or none, and the mean return of plays from a position to the end of the game."""

    def __init__(self, settings: SearchSettings, prior: PolicyPrior | None = None) -> None:
        """Without a `prior`, no policy is asked: that of every position is uniform, and plays are random."""
        self._settings, self._prior = settings, prior

    def __call__(self, leaves: Sequence[Leaf]) -> list[Evaluation]:
        """Return an evaluation of each position."""
        positions = [leaf.position for leaf in leaves]
        priors = self._priors(positions)
        if self._prior and self._settings.rollouts == "policy":
            values = self._by_policy(leaves)
        else:
            values = [self._at_random(leaf) for leaf in leaves]
        return list(map(Evaluation, priors, values))

    def _priors(self, positions: Sequence[SearchPosition]) -> list[list[float]]:
        if self._prior and self._settings.prior == "policy":
            return self._prior(positions)
        return [[1 / len(position.moves)] * len(position.moves) for position in positions]

    def _at_random(self, leaf: Leaf) -> list[float]:
        ends = []
        for _ in range(self._settings.repeats):
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
