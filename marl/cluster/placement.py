"""Placement of a run by its scenario's `cluster`: all in this process, several simulators here, or actors of Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marl.rollout.sharded_simulator import ShardedSimulator
from marl.rollout.shards import LocalShardGroup, SimulatorShard
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.placement import (
    LocalPlacement,
    Placement,
    Sources,
    build_simulator,
    sharded_simulator,
)


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
        # Ray is an optional dependency, and must be imported after the environment variables set by `connected`.
        from marl.cluster.connection import connected

        with connected(settings):
            from marl.cluster.ray_placement import RayPlacement

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
