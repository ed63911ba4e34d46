"""Guests: players that speak beside a simulator's own engines for a while, such as earlier weights of its policies.

Nothing about a guest outlives its visit but memory: who spoke before has no influence on any later bit, so that a run
that is resumed needs to know nothing of earlier guests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from socket import gethostname
from typing import NamedTuple, Protocol

from marl.protocols import Engine, EngineConfig, ModelSource, Player, SavedWeights


class Place(NamedTuple):
    """An engine, and the name by which it knows the policy that is meant."""

    engine: Engine
    policy: str


class Spare(Protocol):
    """Room in memory for saved weights of one policy."""

    def take(self, weights: SavedWeights) -> Place:
        """Load weights; return where they are."""
        ...

    def give_back(self, place: Place) -> None:
        """Take back the room of weights that are not needed any more."""
        ...

    def engines(self) -> Iterator[Engine]:
        """Yield engines in memory that are not a policy's own."""
        ...


class SpareEngines:
    """Engines like a policy's own, whose weights are replaced again and again; another is built when all are in use."""

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._build = build
        self._free: list[Engine] = []
        self._held: dict[int, tuple[Engine, Path]] = {}
        """Engine, by its identity, with the folder of the weights that it holds."""

    def take(self, weights: SavedWeights) -> Place:
        """Load weights, unless an engine that is free holds them already."""
        engine = self._free.pop(0) if self._free else self._build()
        if self._held.get(id(engine)) != (engine, weights.folder):
            self._held[id(engine)] = engine, Path()  # until all is loaded, what it holds has no name
            engine.load_weights(weights.policy, weights.folder, weights.version)
            self._held[id(engine)] = engine, weights.folder
        return Place(engine, weights.policy)

    def give_back(self, place: Place) -> None:
        self._free.append(place.engine)

    def engines(self) -> Iterator[Engine]:
        yield from (engine for engine, _ in self._held.values())


class SpareAdapters:
    """Further adapters on the base in the engine that serves the policy: the base is in memory once."""

    def __init__(self, engine: Engine, source: ModelSource) -> None:
        self._engine, self._source = engine, source

    def take(self, weights: SavedWeights) -> Place:
        """Add an adapter to the engine, and load its weights."""
        place = Place(self._engine, f"{weights.policy}.{weights.version:06d}")
        self._engine.add_policy(place.policy, self._source)
        self._engine.load_weights(place.policy, weights.folder, weights.version)
        return place

    def give_back(self, place: Place) -> None:
        place.engine.remove_policy(place.policy)

    def engines(self) -> Iterator[Engine]:
        yield from ()


class Guests:
    """Guests of a simulator and of all its variants, by name."""

    def __init__(self, spares: Mapping[str, Spare]) -> None:
        """`spares`: policy -> room for its saved weights."""
        self._spares, self._visiting = spares, dict[str, tuple[Place, Spare | None]]()

    def add(self, name: str, player: Player) -> None:
        """Let a player speak under a name.

        Raises:
            ValueError: if the name is taken, or there is no room for weights of this policy.
        """
        if name in self._visiting:
            raise ValueError(f"policy {name!r} speaks here already; remove it first")
        if isinstance(player, EngineConfig):
            self._visiting[name] = Place(player.build(None), name), None
            return
        if player.policy not in self._spares:
            raise ValueError(f"policy {name!r}: {player.policy!r} has no weights that can be loaded beside its own")
        if not player.folder.is_dir():
            raise ValueError(
                f"policy {name!r}: no folder {player.folder} on {gethostname()}, where it is to speak; every machine "
                "of a cluster must see the run's folder under this path"
            )
        spare = self._spares[player.policy]
        self._visiting[name] = spare.take(player), spare

    def remove(self, name: str) -> Engine:
        """Let a guest go; return its engine."""
        place, spare = self._visiting[name]
        if spare:
            spare.give_back(place)
        del self._visiting[name]
        return place.engine

    def place(self, name: str) -> Place | None:
        """Return where a guest speaks; None if there is none of this name."""
        visit = self._visiting.get(name)
        return visit and visit[0]

    def engines(self) -> Iterator[Engine]:
        """Yield all engines in memory that hold saved weights, or did, and are no policy's own."""
        for spare in self._spares.values():
            yield from spare.engines()
