"""Hundreds of simulators in each of a few Ray actors, so that 1,000 of them fit on one machine.

The run's side is the real one: the same `RayShardGroup` makes the same calls for each simulator and gets the same
replies. Only the handles of the simulators lead to methods of a shared actor. Each simulator is a `SimulatorProcess`
whose calls run in a thread of that actor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ray

from marl.cluster.ray_placement import RayPlacement
from marl.cluster.ray_shards import RayShardGroup
from marl.cluster.simulator_process import SimulatorProcess, SimulatorProcessSettings
from marl.cluster.simulator_slot import RestartableSimulator
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.scenario.cluster import ClusterConfig
from marl.scenario.schema import Scenario
from marl.training.placement import ModelSources, sharded_simulator


class SimulatorHost:
    """Ray actor with several simulators; each call of a simulator runs in one of the actor's threads."""

    def __init__(self) -> None:
        self._simulators: dict[int, SimulatorProcess] = {}

    def call(self, number: int, method: str, *arguments: Any) -> Any:
        """Call a method of the simulator with this number, which is created at its first call."""
        return getattr(self._simulators.setdefault(number, SimulatorProcess()), method)(*arguments)


class HostedMethod(NamedTuple):
    """Method of a simulator in a host."""

    host: Any
    number: int
    name: str

    def remote(self, *arguments: Any) -> Any:
        """Start the call, and return Ray's reference of its result."""
        return self.host.call.remote(self.number, self.name, *arguments)


class HostedSimulator:
    """Handle of a simulator in a host, with the methods of a handle of `SimulatorProcess`."""

    def __init__(self, host: Any, number: int) -> None:
        self.hostname_and_pid = HostedMethod(host, number, "hostname_and_pid")
        self.build_and_list_gpu_uuids = HostedMethod(host, number, "build_and_list_gpu_uuids")
        self.execute_and_play = HostedMethod(host, number, "execute_and_play")


class HostedShardGroup(RayShardGroup):
    """Group of simulator shards in a few hosts."""

    def __init__(self, settings: ClusterConfig, setup: SimulatorProcessSettings, hosts: int) -> None:
        threads = -(-settings.simulators // hosts)
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": threads, "enable_task_events": False}
        actor: Any = ray.remote(**options)(SimulatorHost)
        self._hosts = [actor.remote() for _ in range(hosts)]
        super().__init__(settings, setup)

    def _create_actor(self, slot: RestartableSimulator) -> HostedSimulator:
        return HostedSimulator(self._hosts[slot.number % len(self._hosts)], slot.number)

    def close(self) -> None:
        super().close()
        for host in self._hosts:
            ray.kill(host)


class HostedPlacement(RayPlacement):
    """Placement of simulators in a few hosts, and of learners in this process."""

    def __init__(self, settings: ClusterConfig, hosts: int) -> None:
        super().__init__(settings)
        self._host_count = hosts

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> ShardedSimulator:
        setup = SimulatorProcessSettings(scenario, sources, threads=1)
        shards = HostedShardGroup(self._settings, setup, self._host_count)
        self.shard_groups.append(shards)
        return sharded_simulator(scenario, shards)
