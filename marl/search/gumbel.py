"""Gumbel search: policy improvement by planning (Danihelka et al. 2022, ICLR), in units of values from 0 to 1."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Generic

from marl.search.settings import SearchSettings
from marl.search.tree import PositionT, TreeNode, ValueRange

_LEAST = 1e-12
"""Probability at which logarithms of priors begin."""


def logits(prior: Sequence[float]) -> list[float]:
    """Return the logarithms (nats) of a prior."""
    return [math.log(max(chance, _LEAST)) for chance in prior]


def completed_values(
    prior: Sequence[float], visits: Sequence[int], means: Sequence[float], value: float
) -> list[float]:
    """Return Q of every move, that of moves without a visit filled in (appendix D of the paper).

    That is the mix of the node's own `value` and of the prior's mean over visited moves. `means`: Q of visited moves.
    """
    seen, mass = sum(visits), math.fsum(p for p, many in zip(prior, visits, strict=True) if many)
    mix = value
    if mass > 0:
        expected = math.fsum(p * q for p, q, many in zip(prior, means, visits, strict=True) if many) / mass
        mix = (value + seen * expected) / (1 + seen)
    return [mean if many else mix for mean, many in zip(means, visits, strict=True)]


def improved_policy(scores: Sequence[float]) -> list[float]:
    """Return the softmax of logits + sigma(completed Q)."""
    greatest = max(scores)
    weights = [math.exp(score - greatest) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def move_scores(node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings) -> list[float]:
    """Return logits + sigma(completed Q) of every move; sigma(q) = (c_visit + max N) c_scale q."""
    means = [bounds.measure(mean) if mean is not None else 0.0 for mean in node.means()]
    completed = completed_values(node.prior, node.visits, means, bounds.measure(node.values[node.mover]))
    scale = (settings.visit_scale + max(node.visits)) * settings.value_scale
    return [log + scale * q for log, q in zip(logits(node.prior), completed, strict=True)]


def below_root(node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings) -> int:
    """Return the move whose visits lag most behind the improved policy (equation 14 of the paper)."""
    policy, seen = improved_policy(move_scores(node, bounds, settings)), 1 + sum(node.visits)
    lags = [chance - many / seen for chance, many in zip(policy, node.visits, strict=True)]
    return lags.index(max(lags))


class SequentialHalving(Generic[PositionT]):
    """Moves at the root, and which of them get the simulations (algorithm 2 of the paper)."""

    def __init__(
        self, node: TreeNode[PositionT], bounds: ValueRange, settings: SearchSettings, rng: random.Random
    ) -> None:
        """Candidates are at first the moves with the greatest noisy logits; without a temperature there is no noise."""
        self.node, self.bounds, self.settings = node, bounds, settings
        self.noise = [_gumbel(rng) if settings.temperature else 0.0 for _ in node.prior]
        noisy = [log + each for log, each in zip(logits(node.prior), self.noise, strict=True)]
        self.candidates = _best(noisy, range(len(noisy)), min(settings.considered, settings.simulations))

    def schedule(self, simulations: int) -> Iterator[int]:
        """Yield the move of each simulation; candidates are halved as simulations are done."""
        rounds, left = max(1, math.ceil(math.log2(len(self.candidates)))), simulations
        while left > 0:
            each = max(1, simulations // (rounds * len(self.candidates)))
            for _ in range(each):
                yield from self.candidates[:left]
                left -= min(left, len(self.candidates))
            self.candidates = _best(self._scores(), self.candidates, max(2, math.ceil(len(self.candidates) / 2)))

    def choice(self) -> int:
        """Return the move that is played: of those visited most often, the one with the greatest noisy score."""
        visits = self.node.visits
        finalists = [move for move, many in enumerate(visits) if many == max(visits)]
        return _best(self._scores(), finalists, 1)[0]

    def _scores(self) -> list[float]:
        scores = move_scores(self.node, self.bounds, self.settings)
        return [score + each for score, each in zip(scores, self.noise, strict=True)]


def _best(scores: Sequence[float], moves: Sequence[int], many: int) -> list[int]:
    """Return up to `many` of `moves`, the greatest scores first; of equals, the first."""
    return sorted(moves, key=lambda move: (-scores[move], move))[:many]


def _gumbel(rng: random.Random) -> float:
    """Return a draw from the standard Gumbel distribution."""
    return -math.log(-math.log(max(rng.random(), 1e-300)))
