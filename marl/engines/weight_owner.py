"""Base of engine weights with a single set of tensors, shared by policies until the first update."""

from __future__ import annotations

from abc import ABC, abstractmethod

from marl.protocols import ModelSource, Weights


class WeightOwner(ABC):
    """One set of weights. Several policies may share the source's weights; after an update only its policy may."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        """Source of the initial weights."""
        self.versions = [0]
        """Version of the loaded weights, as the version of policy index 0."""
        self._owner: str | None = None
        """Policy of the last update, or None while the source's weights are loaded."""
        self._added: set[str] = set()

    @abstractmethod
    def _overwrite(self, weights: Weights, label: str) -> None:
        """Copy `weights` in place, or raise ValueError and change nothing. `label` is their owner, for messages."""

    def load(self, policy: str, weights: Weights, version: int) -> None:
        """Replace the weights in place.

        Raises:
            ValueError: if names or shapes differ, or another policy uses the weights; nothing is changed then.
        """
        users = (self._added | {self._owner or policy}) - {policy}
        if users:
            names = ", ".join(map(repr, sorted(users)))
            raise ValueError(f"policy {policy!r} has weights of its own, but this engine holds those of {names}")
        self._overwrite(weights, f"version {version} of policy {policy!r}")
        self._owner = policy
        self.versions[0] = version

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Share the weights with a further policy.

        Raises:
            ValueError: if `source` differs from the engine's source, or the weights were updated.
        """
        if source != self.source:
            fault = f"this engine holds the weights of {self.source.path!r} alone"
            raise ValueError(f"policy {policy!r}: {fault}; other weights need an engine of their own")
        if self._owner is not None:
            raise ValueError(f"policy {policy!r}: this engine holds weights that policy {self._owner!r} has learnt")
        self._added.add(policy)

    def remove(self, policy: str) -> None:
        """Unload `policy`. If the loaded weights are an update of this policy, restore the source's weights."""
        self._added.discard(policy)
        if policy != self._owner:
            return
        self._owner = None
        self._overwrite(self.source.model().state_dict().items(), f"the source of policy {policy!r}")
        self.versions[0] = 0
