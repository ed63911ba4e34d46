"""Policies that are added to a simulator temporarily, such as opponents with earlier weights of the run's policies.

A removed policy leaves nothing but allocated memory, so a resumed run needs no record of removed policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from socket import gethostname
from typing import NamedTuple

from marl.protocols import AddedPlayer, Engine, EngineConfig, ModelSource, SavedWeights


class EngineSlot(NamedTuple):
    """Engine that samples for an added policy, with the engine's own name for that policy."""

    engine: Engine
    policy: str


class EarlierWeightsEnginePool:
    """Pool of engines for earlier weights of one policy. Free engines are reused, and new ones are built on demand."""

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._build = build
        self.engines: list[Engine] = []
        """All engines of the pool, in use or free."""
        self._free: list[Engine] = []
        self._loaded_folders: dict[int, Path] = {}
        """Identity of an engine -> folder of its current weights."""

    def acquire_slot(self, saved_weights: SavedWeights) -> EngineSlot:
        """Return a free engine with `saved_weights`, which are loaded unless the engine has these weights already."""
        if self._free:
            engine = self._free.pop(0)
        else:
            engine = self._build()
            self.engines.append(engine)
        if self._loaded_folders.get(id(engine)) != saved_weights.folder:
            # The folder is forgotten first: if the load fails halfway, the engine holds weights of no folder.
            self._loaded_folders[id(engine)] = Path()
            engine.load_weights(saved_weights.policy, saved_weights.folder, saved_weights.version)
            self._loaded_folders[id(engine)] = saved_weights.folder
        return EngineSlot(engine, saved_weights.policy)

    def release_slot(self, slot: EngineSlot) -> None:
        """Mark the engine of `slot` as free. Its weights stay loaded, because a later player may need them again."""
        self._free.append(slot.engine)


class EarlierWeightsAdapterPool:
    """Pool for earlier weights of one policy as additional adapters in its engine, which share the base model."""

    engines = ()
    """Engines that the pool has built: none, as the policy's own engine holds the adapters."""

    def __init__(self, engine: Engine, source: ModelSource) -> None:
        self._engine, self._source = engine, source
        self._names: set[str] = set()
        """Names of the adapters that are in the engine now."""

    def acquire_slot(self, saved_weights: SavedWeights) -> EngineSlot:
        """Add an adapter with `saved_weights` to the engine and return its slot."""
        name = f"{saved_weights.policy}.{saved_weights.version:06d}"
        # A population of another run may have a member with the same version.
        while name in self._names:
            name += "+"
        self._names.add(name)
        slot = EngineSlot(self._engine, name)
        self._engine.add_policy(slot.policy, self._source)
        self._engine.load_weights(slot.policy, saved_weights.folder, saved_weights.version)
        return slot

    def release_slot(self, slot: EngineSlot) -> None:
        """Remove the adapter of `slot` from the engine."""
        slot.engine.remove_policy(slot.policy)
        self._names.remove(slot.policy)


SlotPool = EarlierWeightsEnginePool | EarlierWeightsAdapterPool
"""Pool that loads saved weights of one policy."""


class AddedPolicies:
    """Policies added to a simulator and to all its variants, with the engines that sample for them."""

    def __init__(self, slot_pools: Mapping[str, SlotPool]) -> None:
        """Start without added policies. `slot_pools`: policy of the run -> pool that loads its saved weights."""
        self.slot_pools = slot_pools
        self.slots: dict[str, EngineSlot] = {}
        """Name of an added policy -> slot with the engine that samples for the policy."""
        self._pool_of: dict[str, SlotPool] = {}
        """Name of an added policy with saved weights -> pool of its slot."""

    def add_policy(self, policy_name: str, player: AddedPlayer) -> None:
        """Add `player` as policy `policy_name`.

        Raises:
            ValueError: if the name is in use, or no pool takes weights of the player's policy.
        """
        if policy_name in self.slots:
            raise ValueError(f"policy {policy_name!r} speaks here already; remove it first")
        if isinstance(player, EngineConfig):
            self.slots[policy_name] = EngineSlot(player.build(None), policy_name)
            return
        if player.policy not in self.slot_pools:
            raise ValueError(
                f"policy {policy_name!r}: {player.policy!r} has no weights that can be loaded beside its own"
            )
        if not player.folder.is_dir():
            raise ValueError(
                f"policy {policy_name!r}: no folder {player.folder} on {gethostname()}, where it is to speak; every "
                "machine of a cluster must see the run's folder under this path"
            )
        pool = self.slot_pools[player.policy]
        self.slots[policy_name] = pool.acquire_slot(player)
        self._pool_of[policy_name] = pool

    def remove_policy(self, policy_name: str) -> None:
        """Remove the added policy `policy_name` and free its slot."""
        if policy_name in self._pool_of:
            # The slot is released first: if this fails, the policy stays registered and can be removed again.
            self._pool_of[policy_name].release_slot(self.slots[policy_name])
            del self._pool_of[policy_name]
        del self.slots[policy_name]

    def pool_engines(self) -> list[Engine]:
        """Return the engines of the slot pools, in use or free, without the run's own engines."""
        return [engine for pool in self.slot_pools.values() for engine in pool.engines]
