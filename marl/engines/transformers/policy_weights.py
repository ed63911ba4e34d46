"""Weights in a model for several policies: one set for all, or an adapter for each (`multi_lora`)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marl.engines.weight_owner import WeightOwner
from marl.models.weights import copy_weights
from marl.protocols import ModelSource, Weights


class PolicyWeights(Protocol):
    """A model and the weights of numbered policies. `versions[i]` is the version of the weights of policy index i."""

    model: Any
    versions: list[int]

    def index(self, policy: str) -> int: ...
    def select(self, policies_N: NDArray[np.int64]) -> None: ...
    def load(self, policy: str, weights: Weights, version: int) -> None: ...
    def add(self, policy: str, source: ModelSource | None) -> None: ...
    def remove(self, policy: str) -> None: ...


class FullWeights(WeightOwner):
    """All weights of a model in memory, for one policy or for several until the first update."""

    def __init__(self, model: Any, source: ModelSource) -> None:
        super().__init__(source)
        self.model = model

    def index(self, policy: str) -> int:
        """Return 0, the index of every policy."""
        return 0

    def select(self, policies_N: NDArray[np.int64]) -> None:
        """Do nothing: all rows of the next forward use the same weights."""

    def _overwrite(self, weights: Weights, label: str) -> None:
        copy_weights(self.model, weights)
