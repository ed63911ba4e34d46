"""Base class for the weights of an engine that holds one set of weights at a time.

Several policies may share the initial weights. After an update, the weights belong to the updated policy alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from marl.protocols import ModelSource, Weights


class SinglePolicyWeights(ABC):
    """One set of weights in an engine: the initial weights, which all policies use, or one policy's updated weights."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        """Source of the initial weights."""
        self.versions = [0]
        """List with the version of the loaded weights, as the index of every policy is 0."""
        self._owner: str | None = None
        """Policy whose update is loaded, or None while the initial weights are loaded."""
        self._added: set[str] = set()
        """Further policies that share the initial weights."""

    @abstractmethod
    def _overwrite_weights(self, weights: Weights, owner_in_errors: str) -> None:
        """Copy `weights` into the engine's model, or raise ValueError and change nothing.

        `owner_in_errors` names the owner of `weights` in error messages.
        """

    def load_weights(self, policy: str, weights: Weights, version: int) -> None:
        """Replace the engine's weights in place by an update of `policy`.

        Raises:
            ValueError: if names or shapes differ, or another policy uses the weights; nothing is changed then.
        """
        users = (self._added | {self._owner or policy}) - {policy}
        if users:
            names = ", ".join(map(repr, sorted(users)))
            raise ValueError(f"policy {policy!r} has weights of its own, but this engine holds those of {names}")
        self._overwrite_weights(weights, f"version {version} of policy {policy!r}")
        self._owner = policy
        self.versions[0] = version

    def add_policy(self, policy: str, source: ModelSource | None) -> None:
        """Add `policy`, which samples with the initial weights.

        Raises:
            ValueError: if `source` differs from the engine's source, or the weights were updated.
        """
        if source != self.source:
            fault = f"this engine holds the weights of {self.source.path!r} alone"
            raise ValueError(f"policy {policy!r}: {fault}; other weights need an engine of their own")
        if self._owner is not None:
            raise ValueError(f"policy {policy!r}: this engine holds weights that policy {self._owner!r} has learnt")
        self._added.add(policy)

    def remove_policy(self, policy: str) -> None:
        """Unload `policy`. If the loaded weights are an update of this policy, restore the initial weights."""
        self._added.discard(policy)
        if policy != self._owner:
            return
        self._owner = None
        self._overwrite_weights(self.source.model().state_dict().items(), f"the source of policy {policy!r}")
        self.versions[0] = 0
