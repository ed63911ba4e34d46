"""Whose weights speak in which row of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marl.models.weights import copy_weights

if TYPE_CHECKING:
    from marl.protocols import Weights


class Voices(Protocol):
    """The weights in a model, by number: a voice is what a policy speaks with."""

    model: Any
    versions: list[int]
    """Of each voice's weights."""

    def of(self, policy: str) -> int:
        """The voice of a policy.

        Raises:
            ValueError: if it has none here.
        """
        ...

    def aim(self, voices_N: NDArray[np.int64]) -> None:
        """Row n of the next forwards is spoken by voice n."""

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Copy a policy's weights in place.

        Raises:
            ValueError: if they do not fit; nothing is changed then.
        """


class Solo:
    """All weights of a model. Policies that never learn may share them."""

    def __init__(self, model: Any) -> None:
        self.model, self.versions = model, [0]
        self._owner: str | None = None
        """The policy whose weights were loaded."""

    def of(self, policy: str) -> int:
        return 0

    def aim(self, voices_N: NDArray[np.int64]) -> None:
        """There is but one."""

    def load(self, policy: str, weights: Weights, version: int) -> None:
        if self._owner not in (None, policy):
            raise ValueError(
                f"policy {policy!r} has weights of its own, but this engine holds those of {self._owner!r}"
            )
        copy_weights(self.model, weights)
        self._owner, self.versions[0] = policy, version
