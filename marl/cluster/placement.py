"""Placement of a run by `cluster` of its scenario: in this process, with one or several simulators, or in Ray
actors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marl.rollout.sharded_simulator import ShardedSimulator
from marl.rollout.shards import LocalShardGroup, SimulatorShard
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.placement import (
    LocalPlacement,
    ModelSources,
    Placement,
    build_simulator,
    sharded_simulator,
)


@contextmanager
def open_placement(scenario: Scenario) -> Iterator[Placement]:
    """Yield the placement of a run's simulators and learners. Their processes end with the context.

    Raises:
        ScenarioError: if Ray is missing, too old or cannot be reached, or if the cluster is too small.
    """
    settings = scenario.cluster
    if settings is None:
        yield LocalPlacement()
    elif settings.kind == "local":
        yield ShardedPlacement(settings.simulators)
    else:
        if problems := list(settings.ray_requirement_errors()):
            raise ScenarioError(f"cluster.{problems[0]}")
        # Ray is optional, and must be imported after `ray_connection` has set environment variables.
        from marl.cluster.connection import ray_connection

        with ray_connection(settings):
            from marl.cluster.ray_placement import RayPlacement

            placement = RayPlacement(settings)
            try:
                yield placement
            finally:
                placement.close()


class ShardedPlacement(LocalPlacement):
    """Placement in this process with several simulators, each with engines of its own."""

    def __init__(self, simulators: int) -> None:
        self._simulators = simulators

    def build_simulator(self, scenario: Scenario, sources: ModelSources) -> ShardedSimulator:
        count = self._simulators
        shards = [SimulatorShard(build_simulator(scenario, sources, index, count)) for index in range(count)]
        return sharded_simulator(scenario, LocalShardGroup(shards))
