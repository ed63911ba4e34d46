"""Exact NashConv of the mixtures of a league's pool, beside that of its newest policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marl.core.types import Metrics
from marl.evaluation.game_tree import GameTree, Strategy, nash_conv
from marl.evaluation.mixtures import mix_strategies
from marl.protocols import SavedWeights

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
eval/pool/nashconv | reward | the same of the uniform mixture of a league's pool, whose member is drawn before every
    episode (`evaluate.population`); exact, and absent while the pool is empty
eval/meta/nashconv | reward | the same of members drawn by the meta-strategy: as the first player that meets the pool
    draws them
"""


class PopulationMixture:
    """NashConv of a pool's mixtures in one game. The strategy of each member is measured once."""

    def __init__(self, tree: GameTree, measure_strategy: Callable[[str, SavedWeights], Strategy]) -> None:
        """`measure_strategy` returns the strategy of a member with this name and these weights."""
        self._tree, self._measure_strategy = tree, measure_strategy
        self._strategies: dict[str, Strategy] = {}
        """Name of a member -> its move probabilities in every information state."""

    def metrics(self, members: Mapping[str, tuple[SavedWeights, float]]) -> Metrics:
        """Return NashConv of the uniform mixture and of the meta-strategy.

        `members` maps a member's name to its weights and its probability under the meta-strategy. The metric of a
        mixture without members is left out.
        """
        strategies: dict[str, Strategy] = {}
        for name, (weights, _) in members.items():
            known = self._strategies.get(name)
            strategies[name] = self._measure_strategy(name, weights) if known is None else known
        # Members that left the pool are forgotten.
        self._strategies = strategies
        shares_by_mixture = {
            "pool": [1.0] * len(members),
            "meta": [probability for _, probability in members.values()],
        }
        metrics: Metrics = {}
        for mixture, shares in shares_by_mixture.items():
            if any(shares):
                strategy = mix_strategies(self._tree, list(strategies.values()), shares)
                metrics[f"eval/{mixture}/nashconv"] = nash_conv(self._tree, strategy)
        return metrics
