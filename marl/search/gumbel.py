"""Gumbel search: policy improvement by planning (Danihelka et al. 2022, ICLR), in units of values from 0 to 1."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Iterator, Sequence
from typing import Generic

from marl.search.settings import SearchSettings
from marl.search.tree import PositionT, TreeNode, ValueRange

_MIN_PRIOR = 1e-12
"""Lower bound of prior probabilities in logarithms."""


def log_prior(prior: Sequence[float]) -> list[float]:
    """Return the logarithms of prior probabilities [nats], at least log(`_MIN_PRIOR`)."""
    return [math.log(max(probability, _MIN_PRIOR)) for probability in prior]


def completed_q_values(
    prior: Sequence[float], visits: Sequence[int], mean_values: Sequence[float], node_value: float
) -> list[float]:
    """Return Q of every move, with an estimate for moves without a visit (appendix D of the paper).

    The estimate mixes `node_value`, the node's own evaluation, with the mean over visited moves under the prior.
    `mean_values` holds Q of the visited moves.
    """
    estimate, total_visits = node_value, sum(visits)
    visited_prior = [probability if count else 0.0 for probability, count in zip(prior, visits, strict=True)]
    mass = math.fsum(visited_prior)
    if mass > 0:
        expected = math.fsum(map(operator.mul, visited_prior, mean_values)) / mass
        estimate = (node_value + total_visits * expected) / (1 + total_visits)
    return [mean if count else estimate for mean, count in zip(mean_values, visits, strict=True)]


def improved_policy(logits: Sequence[float]) -> list[float]:
    """Return the policy improved by a search: the softmax of `logits`, as returned by `improved_policy_logits`."""
    maximum = max(logits)
    weights = [math.exp(score - maximum) for score in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def improved_policy_logits(node: TreeNode[PositionT], value_range: ValueRange, settings: SearchSettings) -> list[float]:
    """Return logits + sigma(completed Q) of every move of `node`, with sigma(q) = (c_visit + max N) c_scale q."""
    mean_values = [value_range.normalise(mean) if mean is not None else 0.0 for mean in node.mean_values()]
    completed = completed_q_values(node.prior, node.visits, mean_values, value_range.normalise(node.values[node.mover]))
    scale = (settings.visit_scale + max(node.visits)) * settings.value_scale
    return [logit + scale * q for logit, q in zip(log_prior(node.prior), completed, strict=True)]


def select_move_below_root(node: TreeNode[PositionT], value_range: ValueRange, settings: SearchSettings) -> int:
    """Return the move whose share of visits lags most behind the improved policy (equation 14 of the paper)."""
    policy, denominator = improved_policy(improved_policy_logits(node, value_range, settings)), 1 + sum(node.visits)
    lags = [probability - count / denominator for probability, count in zip(policy, node.visits, strict=True)]
    return lags.index(max(lags))


class SequentialHalving(Generic[PositionT]):
    """Allocation of simulations to moves at the root (algorithm 2 of the paper)."""

    def __init__(
        self, node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings, rng: random.Random
    ) -> None:
        """Select the moves with the greatest logits as candidates, with Gumbel noise unless the temperature is 0."""
        self.node, self.bounds, self.settings = node, bounds, settings
        self.noise = [0.0] * len(node.prior)
        if settings.temperature:
            # Standard Gumbel noise. The lower bound avoids log(0), because `random` may return 0.
            self.noise = [-math.log(-math.log(max(rng.random(), 1e-300))) for _ in node.prior]
        noisy_logits = list(map(operator.add, log_prior(node.prior), self.noise))
        self.candidates = _best_moves(
            noisy_logits, range(len(noisy_logits)), min(settings.considered, settings.simulations)
        )

    def scheduled_root_moves(self, simulations: int) -> Iterator[int]:
        """Yield the move of each simulation. Between rounds the worse half of the candidates is dropped."""
        rounds, remaining = max(1, math.ceil(math.log2(len(self.candidates)))), simulations
        while remaining > 0:
            visits_per_candidate = max(1, simulations // (rounds * len(self.candidates)))
            for _ in range(visits_per_candidate):
                yield from self.candidates[:remaining]
                remaining -= min(remaining, len(self.candidates))
            half = max(2, math.ceil(len(self.candidates) / 2))
            self.candidates = _best_moves(self._noisy_root_logits(), self.candidates, half)

    def chosen_move_index(self) -> int:
        """Return the index of the move with the greatest noisy score among the most visited moves."""
        visits = self.node.visits
        finalists = [move for move, count in enumerate(visits) if count == max(visits)]
        return _best_moves(self._noisy_root_logits(), finalists, 1)[0]

    def _noisy_root_logits(self) -> list[float]:
        """Return logits + Gumbel noise + sigma(completed Q) of every move at the root."""
        return list(map(operator.add, improved_policy_logits(self.node, self.bounds, self.settings), self.noise))


def _best_moves(scores: Sequence[float], moves: Sequence[int], count: int) -> list[int]:
    """Return up to `count` of `moves` in descending order of score; ties by index."""
    return sorted(moves, key=lambda move: (-scores[move], move))[:count]
