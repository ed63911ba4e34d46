"""Gumbel search: policy improvement by planning (Danihelka et al. 2022, ICLR), in units of values from 0 to 1."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Generic

from marl.search.settings import SearchSettings
from marl.search.tree import PositionT, TreeNode, ValueRange

_MIN_PRIOR = 1e-12
"""Lower bound of prior probabilities in logarithms."""


def logits(prior: Sequence[float]) -> list[float]:
    """Return the logarithms (nats) of a prior."""
    return [math.log(max(probability, _MIN_PRIOR)) for probability in prior]


def completed_values(
    prior: Sequence[float], visits: Sequence[int], means: Sequence[float], value: float
) -> list[float]:
    """Return Q of every move, with an estimate for moves without a visit (appendix D of the paper).

    The estimate mixes the node's own `value` and the prior's mean over visited moves. `means`: Q of visited moves.
    """
    visited = [move for move, count in enumerate(visits) if count]
    total_visits, mass = sum(visits), math.fsum(prior[move] for move in visited)
    estimate = value
    if mass > 0:
        expected = math.fsum(prior[move] * means[move] for move in visited) / mass
        estimate = (value + total_visits * expected) / (1 + total_visits)
    return [mean if count else estimate for mean, count in zip(means, visits, strict=True)]


def improved_policy(scores: Sequence[float]) -> list[float]:
    """Return the softmax of logits + sigma(completed Q)."""
    maximum = max(scores)
    weights = [math.exp(score - maximum) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def move_scores(node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings) -> list[float]:
    """Return logits + sigma(completed Q) of every move; sigma(q) = (c_visit + max N) c_scale q."""
    means = [bounds.measure(mean) if mean is not None else 0.0 for mean in node.means()]
    completed = completed_values(node.prior, node.visits, means, bounds.measure(node.values[node.mover]))
    scale = (settings.visit_scale + max(node.visits)) * settings.value_scale
    return [logit + scale * q for logit, q in zip(logits(node.prior), completed, strict=True)]


def below_root(node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings) -> int:
    """Return the move whose visits lag most behind the improved policy (equation 14 of the paper)."""
    policy, denominator = improved_policy(move_scores(node, bounds, settings)), 1 + sum(node.visits)
    lags = [probability - count / denominator for probability, count in zip(policy, node.visits, strict=True)]
    return lags.index(max(lags))


class SequentialHalving(Generic[PositionT]):
    """Allocation of simulations to moves at the root (algorithm 2 of the paper)."""

    def __init__(
        self, node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings, rng: random.Random
    ) -> None:
        """The first candidates are the moves with the greatest noisy logits; no noise at temperature 0."""
        self.node, self.bounds, self.settings = node, bounds, settings
        self.noise = [_gumbel(rng) if settings.temperature else 0.0 for _ in node.prior]
        noisy = [logit + noise for logit, noise in zip(logits(node.prior), self.noise, strict=True)]
        self.candidates = _best(noisy, range(len(noisy)), min(settings.considered, settings.simulations))

    def schedule(self, simulations: int) -> Iterator[int]:
        """Yield the move of each simulation. Between rounds the worse half of the candidates is dropped."""
        rounds, remaining = max(1, math.ceil(math.log2(len(self.candidates)))), simulations
        while remaining > 0:
            visits_per_candidate = max(1, simulations // (rounds * len(self.candidates)))
            for _ in range(visits_per_candidate):
                yield from self.candidates[:remaining]
                remaining -= min(remaining, len(self.candidates))
            self.candidates = _best(self._scores(), self.candidates, max(2, math.ceil(len(self.candidates) / 2)))

    def choice(self) -> int:
        """Return the move to play: among the most visited moves, the move with the greatest noisy score."""
        visits = self.node.visits
        finalists = [move for move, count in enumerate(visits) if count == max(visits)]
        return _best(self._scores(), finalists, 1)[0]

    def _scores(self) -> list[float]:
        scores = move_scores(self.node, self.bounds, self.settings)
        return [score + noise for score, noise in zip(scores, self.noise, strict=True)]


def _best(scores: Sequence[float], moves: Sequence[int], count: int) -> list[int]:
    """Return up to `count` of `moves` in descending order of score; ties by index."""
    return sorted(moves, key=lambda move: (-scores[move], move))[:count]


def _gumbel(rng: random.Random) -> float:
    """Return a draw from the standard Gumbel distribution."""
    # The lower bound avoids log(0): `random` may return 0.
    return -math.log(-math.log(max(rng.random(), 1e-300)))
