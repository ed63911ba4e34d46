"""Placement of a run on Ray: simulators in actors, learners in actors or this process."""

from __future__ import annotations

from marl.cluster.learners import ClusterLearners, build_learners
from marl.cluster.ray_shards import RayShardGroup
from marl.cluster.simulator_process import SimulatorProcessSettings
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.scenario.cluster import ClusterConfig
from marl.scenario.schema import Scenario
from marl.training.placement import LocalPlacement, ModelSources, sharded_simulator


class RayPlacement(LocalPlacement):
    """Placement of simulators in Ray actors, and of learners in Ray actors or in this process."""

    def __init__(self, settings: ClusterConfig) -> None:
        self._settings = settings
        self.shard_groups: list[RayShardGroup] = []
        """Shard group of each simulator built so far."""
        self._learners: ClusterLearners | None = None

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> ShardedSimulator:
        threads = scenario.schedule.threads or max(1, int(self._settings.cpus))
        shards = RayShardGroup(self._settings, SimulatorProcessSettings(scenario, sources, threads))
        self.shard_groups.append(shards)
        return sharded_simulator(scenario, shards)

    def build_learners(self, scenario: Scenario, sources: ModelSources) -> ClusterLearners:
        self._learners = build_learners(scenario, self._settings, sources)
        return self._learners

    def close(self) -> None:
        """End all processes of simulators and learners."""
        for shards in self.shard_groups:
            shards.close()
        if self._learners is not None:
            self._learners.close()
