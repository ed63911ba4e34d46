"""Settings of the engine for Q-networks. This module does not import torch."""

from __future__ import annotations

from typing import ClassVar, cast

from marl.models.q_network import Q_NETWORK, QNetworkSource
from marl.protocols import Engine, EngineConfig, ModelSource


class EpsilonGreedy(EngineConfig):
    """Plays the legal move of the highest value, or with probability epsilon any legal move.

    Epsilon is published with the weights by the learner. Evaluation, a role's `temperature: 0` and saved weights always
    play the best move.
    """

    kind: str = "epsilon_greedy"
    family: ClassVar[str] = Q_NETWORK
    needs_model: ClassVar[bool] = True

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.epsilon_greedy.engine import EpsilonGreedyEngine

        if source is None:
            raise ValueError("engine 'epsilon_greedy' plays by a model's values: give the policy a `model`")
        return EpsilonGreedyEngine(cast("QNetworkSource", source))
