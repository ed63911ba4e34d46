"""One set of weights in a Transformers model, for one or more policies (`MultiLoraModel` holds adapters instead)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl.engines.weight_owner import SinglePolicyWeights
from marl.models.weights import overwrite_model_weights
from marl.protocols import ModelSource, Weights


class FullWeights(SinglePolicyWeights):
    """All weights of a model, shared by its policies until the first update, and owned by one policy after it."""

    def __init__(self, model: Any, source: ModelSource) -> None:
        super().__init__(source)
        self.model = model

    def policy_index(self, policy: str) -> int:
        """Return 0, the index of every policy."""
        return 0

    def set_row_policies(self, policy_indices_N: NDArray[np.int64], *, in_place: bool = False) -> None:
        """Do nothing, because all rows of the next forward use the same weights."""

    def _overwrite_weights(self, weights: Weights, owner_in_errors: str) -> None:
        overwrite_model_weights(self.model, weights)
