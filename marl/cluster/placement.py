"""Placement of a run by its scenario's `cluster`: all in this process, several simulators here, or actors of Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from marl.rollout.casting import RoleCasting
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.rollout.shards import LocalShardGroup, ShardGroup, SimulatorShard
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.placement import (
    LocalLearners,
    LocalPlacement,
    Placement,
    Sources,
    build_simulator,
    games_of,
)

if TYPE_CHECKING:
    # These modules import ray, which is an optional dependency.
    from marl.cluster.learners import ClusterLearners
    from marl.cluster.ray_shards import RayShardGroup


@contextmanager
def open_placement(scenario: Scenario) -> Iterator[Placement]:
    """Yield the placement of a run. Its processes end with this context.

    Raises:
        ScenarioError: if Ray is missing, too old or cannot be reached, or if the cluster is too small.
    """
    settings = scenario.cluster
    if settings is None:
        yield LocalPlacement()
    elif settings.kind == "local":
        yield ShardedPlacement(settings.simulators)
    else:
        if problems := list(settings.missing()):
            raise ScenarioError(f"cluster.{problems[0]}")
        from marl.cluster.connection import connected

        with connected(settings):
            placement = RayPlacement(settings)
            try:
                yield placement
            finally:
                placement.close()


class ShardedPlacement(LocalPlacement):
    """Placement in this process, with several simulators that have engines of their own."""

    def __init__(self, simulators: int) -> None:
        self._simulators = simulators

    def simulator(self, scenario: Scenario, sources: Sources) -> ShardedSimulator:
        shards = [SimulatorShard(build_simulator(scenario, sources)) for _ in range(self._simulators)]
        return sharded_simulator(scenario, LocalShardGroup(shards))


class RayPlacement(LocalPlacement):
    """Placement of simulators in actors of Ray, and of learners in actors or this process."""

    def __init__(self, settings: ClusterConfig) -> None:
        self._settings = settings
        self.shard_groups: list[RayShardGroup] = []
        """Shards of each simulator built so far."""
        self._learners: ClusterLearners | None = None

    def simulator(self, scenario: Scenario, sources: Sources) -> ShardedSimulator:
        from marl.cluster.ray_shards import RayShardGroup
        from marl.cluster.simulator_process import SimulatorSetup

        threads = scenario.schedule.threads or max(1, int(self._settings.cpus))
        shards = RayShardGroup(self._settings, SimulatorSetup(scenario, sources, threads))
        self.shard_groups.append(shards)
        return sharded_simulator(scenario, shards)

    def learners(self, scenario: Scenario, sources: Sources) -> LocalLearners:
        from marl.cluster.learners import build_learners

        self._learners = build_learners(scenario, self._settings, sources)
        return self._learners

    def close(self) -> None:
        """End all processes."""
        for shards in self.shard_groups:
            shards.close()
        if self._learners is not None:
            self._learners.close()


def sharded_simulator(scenario: Scenario, shards: ShardGroup) -> ShardedSimulator:
    """Return a simulator of the scenario's games and roles with these shards."""
    schedule = scenario.schedule
    simulator = ShardedSimulator(games_of(scenario), RoleCasting(scenario.roles, schedule.seed), shards)
    simulator.max_drops = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator
