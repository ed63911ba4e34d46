"""Bookkeeping of the weights of an engine that holds one set of them: who uses them, and who has learnt them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marl.protocols import ModelSource


class WeightOwner:
    """Policies that share one set of weights until one of them has learnt."""

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        """Where the weights come from."""
        self._owner: str | None = None
        """The policy whose weights were loaded."""
        self._added: set[str] = set()

    def check(self, policy: str) -> None:
        """Check that a policy may replace the weights.

        Raises:
            ValueError: if other policies use them.
        """
        if users := (self._added | {self._owner or policy}) - {policy}:
            names = ", ".join(map(repr, sorted(users)))
            raise ValueError(f"policy {policy!r} has weights of its own, but this engine holds those of {names}")

    def take(self, policy: str) -> None:
        """Note that a policy's own weights are held now."""
        self._owner = policy

    def add(self, policy: str, source: ModelSource | None) -> None:
        """Let a further policy use the weights.

        Raises:
            ValueError: if its source is another one, or if they have learnt.
        """
        if source != self.source:
            held = f"this engine holds the weights of {self.source.path!r} alone"
            raise ValueError(f"policy {policy!r}: {held}; other weights need an engine of their own")
        if self._owner is not None:
            raise ValueError(f"policy {policy!r}: this engine holds weights that policy {self._owner!r} has learnt")
        self._added.add(policy)

    def remove(self, policy: str) -> bool:
        """Forget a policy; return True if what it has learnt is held, and is to give way to the source's weights."""
        self._added.discard(policy)
        learnt = policy == self._owner
        self._owner = None if learnt else self._owner
        return learnt
