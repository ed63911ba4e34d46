"""Weights of one policy, or of several that share all of them, in a model in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marl.engines.weight_owner import WeightOwner
from marl.models.weights import copy_weights

if TYPE_CHECKING:
    from marl.engines.transformers.multi_lora import MultiLora
    from marl.protocols import ModelSource, Weights


class SinglePolicy:
    """All weights of a model. Policies with the same weights share them until one of them has learnt."""

    def __init__(self, model: Any, source: ModelSource) -> None:
        self.model, self.versions, self._owner = model, [0], WeightOwner(source)

    def index(self, policy: str) -> int:
        """Return the index of a policy, which is the same for all."""
        return 0

    def select(self, policies_N: NDArray[np.int64]) -> None:
        """Do nothing: all rows of the next forwards use the same weights."""

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Copy a policy's weights in place.

        Raises:
            ValueError: if they do not fit, or other policies use those held here; nothing is changed then.
        """
        self._owner.check(policy)
        copy_weights(self.model, weights)
        self._owner.take(policy)
        self.versions[0] = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Let a further policy use these weights.

        Raises:
            ValueError: if its source is another one, or if these weights have learnt.
        """
        self._owner.add(policy, source)

    def remove(self, policy: str) -> None:
        """Forget a policy; weights that it has learnt give way to those of the source."""
        if self._owner.remove(policy):
            copy_weights(self.model, self._owner.source.model().state_dict().items())
            self.versions[0] = 0


if TYPE_CHECKING:
    PolicyWeights = SinglePolicy | MultiLora
    """Weights in a model for rows of several policies, which are numbered: `versions[i]` is of policy i's weights."""
