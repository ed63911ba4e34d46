"""Weights of one policy, or of several that share all of them, in a model in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marl.models.weights import copy_weights

if TYPE_CHECKING:
    from marl.engines.transformers.multi_lora import MultiLora
    from marl.protocols import ModelSource, Weights


class SinglePolicy:
    """All weights of a model. Policies with the same weights share them until one of them has learnt."""

    def __init__(self, model: Any, source: ModelSource) -> None:
        self.model, self.versions, self._source = model, [0], source
        self._owner: str | None = None
        """The policy whose weights were loaded."""
        self._added: set[str] = set()

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
        if users := (self._added | {self._owner or policy}) - {policy}:
            names = ", ".join(map(repr, sorted(users)))
            raise ValueError(f"policy {policy!r} has weights of its own, but this engine holds those of {names}")
        copy_weights(self.model, weights)
        self._owner, self.versions[0] = policy, version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Let a further policy use these weights.

        Raises:
            ValueError: if its source is another one, or if these weights have learnt.
        """
        if source != self._source:
            held = f"this engine holds the weights of {self._source.path!r} alone"
            raise ValueError(f"policy {policy!r}: {held}; other weights need an engine of their own")
        if self._owner is not None:
            raise ValueError(f"policy {policy!r}: this engine holds weights that policy {self._owner!r} has learnt")
        self._added.add(policy)

    def remove(self, policy: str) -> None:
        """Forget a policy; weights that it has learnt give way to those of the source."""
        self._added.discard(policy)
        if policy == self._owner:
            copy_weights(self.model, self._source.model().state_dict().items())
            self._owner, self.versions[0] = None, 0


if TYPE_CHECKING:
    PolicyWeights = SinglePolicy | MultiLora
    """Weights in a model for rows of several policies, which are numbered: `versions[i]` is of policy i's weights."""
