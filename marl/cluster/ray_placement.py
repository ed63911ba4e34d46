"""Placement of a run on Ray: simulators in actors, learners in actors or this process."""

from __future__ import annotations

import time

import ray
from ray.autoscaler.sdk import request_resources

from marl.cluster.connection import check_cluster_capacity
from marl.cluster.learner_group import MultiProcessLearner
from marl.cluster.learners import ClusterLearners, build_learners
from marl.cluster.node_plan import NodePlan, plan_nodes
from marl.cluster.ray_shards import RayShardGroup
from marl.cluster.simulator_process import SimulatorProcessSettings
from marl.rollout.base import ProcessActivity
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.placement import LocalPlacement, ModelSources, sharded_simulator

_WAIT_POLL_S = 0.5
"""Interval at which `cluster.wait_s` looks for new machines, in seconds."""


class RayPlacement(LocalPlacement):
    """Placement of simulators in Ray actors, and of learners in Ray actors or in this process."""

    def __init__(self, settings: ClusterConfig) -> None:
        self._settings = settings
        self.shard_groups: list[RayShardGroup] = []
        """Shard group of each simulator built so far."""
        self._learners: list[MultiProcessLearner] = []
        """Learners with processes of their own, also those that are starting."""
        self._wait: ProcessActivity | None = None
        """Wait for machines, or None if there is room."""
        self._plan = NodePlan((), {})

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> ShardedSimulator:
        self._plan = self._plan_when_there_is_room()
        threads = scenario.schedule.threads or max(1, int(self._settings.cpus))
        setup = SimulatorProcessSettings(scenario, sources, threads)
        shards = RayShardGroup(self._settings, setup, self._plan.simulators)
        self.shard_groups.append(shards)
        return sharded_simulator(scenario, shards)

    def build_learners(self, scenario: Scenario, sources: ModelSources) -> ClusterLearners:
        return build_learners(scenario, self._settings, sources, self._plan.learners, self._learners)

    def process_activities(self) -> tuple[list[ProcessActivity], list[ProcessActivity]]:
        simulators = [self._wait] if self._wait else []
        for shards in self.shard_groups:
            simulators += shards.process_activities()
        return simulators, [activity for learner in list(self._learners) for activity in learner.process_activities()]

    def close(self) -> None:
        """End all processes of simulators and learners."""
        for shards in self.shard_groups:
            shards.close()
        for learner in self._learners:
            learner.close()

    def _plan_when_there_is_room(self) -> NodePlan:
        """Return the machines on which all processes start, after a wait of at most `cluster.wait_s` for machines.

        Raises:
            ScenarioError: if there is no room for all processes by then.
        """
        settings, began, asks = self._settings, time.time(), False
        while True:
            nodes = [node for node in ray.nodes() if node["Alive"]]
            try:
                check_cluster_capacity(settings, nodes)
            except ScenarioError as error:
                if time.time() - began >= settings.wait_s:
                    raise
                self._wait = ProcessActivity("cluster", "", f"waiting for machines: {error}", began, 0)
                if not asks:
                    # An autoscaler of the cluster starts machines for these processes; other clusters ignore it.
                    request_resources(bundles=settings.process_resources)
                    asks = True
                time.sleep(_WAIT_POLL_S)
                continue
            self._wait = None
            if asks:
                request_resources(bundles=[])
            return plan_nodes(settings, nodes) or NodePlan((), {})
