"""Policies added to a simulator for a while beside its own engines, such as earlier weights of the run's policies.

Only memory stays in use after a policy is removed: earlier added policies have no influence on any later bit, so a
resumed run needs no record of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from socket import gethostname
from typing import NamedTuple, Protocol

from marl.protocols import AddedPlayer, Engine, EngineConfig, ModelSource, SavedWeights


class EngineSlot(NamedTuple):
    """An engine, and its name for the policy of this slot."""

    engine: Engine
    policy: str


class SlotPool(Protocol):
    """Room in memory for saved weights of one policy."""

    def acquire(self, weights: SavedWeights) -> EngineSlot:
        """Load `weights` into a slot."""
        ...

    def release(self, slot: EngineSlot) -> None:
        """Free the slot of weights after their last request."""
        ...

    def engines(self) -> Iterator[Engine]:
        """Yield engines in memory beside the policy's own."""
        ...


class EnginePool:
    """Engines with the policy's settings, whose weights are replaced again and again. The pool grows on demand."""

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._build = build
        self._free: list[Engine] = []
        self._loaded: dict[int, tuple[Engine, Path]] = {}
        """Engine's identity -> engine and folder of its current weights."""

    def acquire(self, weights: SavedWeights) -> EngineSlot:
        """Load `weights` into a free engine, unless they are its current weights."""
        engine = self._free.pop(0) if self._free else self._build()
        if self._loaded.get(id(engine)) != (engine, weights.folder):
            # A load that fails halfway leaves a mix of weights, which must not count as those of any folder.
            self._loaded[id(engine)] = engine, Path()
            engine.load_weights(weights.policy, weights.folder, weights.version)
            self._loaded[id(engine)] = engine, weights.folder
        return EngineSlot(engine, weights.policy)

    def release(self, slot: EngineSlot) -> None:
        self._free.append(slot.engine)

    def engines(self) -> Iterator[Engine]:
        for engine, _ in self._loaded.values():
            yield engine


class AdapterPool:
    """Further adapters in the engine of the policy: the base model is in memory once."""

    def __init__(self, engine: Engine, source: ModelSource) -> None:
        self._engine, self._source = engine, source

    def acquire(self, weights: SavedWeights) -> EngineSlot:
        """Add an adapter to the engine and load its weights."""
        slot = EngineSlot(self._engine, f"{weights.policy}.{weights.version:06d}")
        self._engine.add_policy(slot.policy, self._source)
        self._engine.load_weights(slot.policy, weights.folder, weights.version)
        return slot

    def release(self, slot: EngineSlot) -> None:
        slot.engine.remove_policy(slot.policy)

    def engines(self) -> Iterator[Engine]:
        yield from ()


class AddedPolicies:
    """Added policies of a simulator and of all its variants, by name."""

    def __init__(self, slot_pools: Mapping[str, SlotPool]) -> None:
        """`slot_pools`: policy -> room for its saved weights."""
        self._slot_pools = slot_pools
        self._slots: dict[str, tuple[EngineSlot, SlotPool | None]] = {}

    def add(self, name: str, player: AddedPlayer) -> None:
        """Add `player` under `name`.

        Raises:
            ValueError: if the name is in use, or there is no room for weights of this policy.
        """
        if name in self._slots:
            raise ValueError(f"policy {name!r} speaks here already; remove it first")
        if isinstance(player, EngineConfig):
            self._slots[name] = EngineSlot(player.build(None), name), None
            return
        if player.policy not in self._slot_pools:
            raise ValueError(f"policy {name!r}: {player.policy!r} has no weights that can be loaded beside its own")
        if not player.folder.is_dir():
            raise ValueError(
                f"policy {name!r}: no folder {player.folder} on {gethostname()}, where it is to speak; every machine "
                "of a cluster must see the run's folder under this path"
            )
        pool = self._slot_pools[player.policy]
        self._slots[name] = pool.acquire(player), pool

    def remove(self, name: str) -> None:
        """Remove the policy `name` and free its slot."""
        slot, pool = self._slots[name]
        if pool:
            pool.release(slot)
        del self._slots[name]

    def slot(self, name: str) -> EngineSlot | None:
        """Return the slot of the added policy `name`, or None if there is no such policy."""
        entry = self._slots.get(name)
        return entry and entry[0]

    def engines(self) -> Iterator[Engine]:
        """Yield all engines in memory for saved weights, in use or free, without the policies' own engines."""
        for pool in self._slot_pools.values():
            yield from pool.engines()
