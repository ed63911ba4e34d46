"""Placement of a run's parts by its scenario's `cluster`: all here, several simulators here, or actors of Ray."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from marl.protocols import GameConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.partition import PartitionedSimulator
from marl.rollout.parts import LocalParts, Parts, SimulatorPart
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError
from marl.scenario.schema import Scenario
from marl.training.placement import (
    LocalLearners,
    LocalPlacement,
    Placement,
    Sources,
    games_of,
    playing_simulator,
)

if TYPE_CHECKING:
    from marl.cluster.learners import ClusterLearners
    from marl.cluster.ray_parts import RayParts


@contextmanager
def placement_of(scenario: Scenario) -> Iterator[Placement]:
    """Yield the placement of a run, whose processes end with this context.

    Raises:
        ScenarioError: if Ray is missing, too old or cannot be reached, or if the cluster is too small.
    """
    settings = scenario.cluster
    if settings is None:
        yield LocalPlacement()
    elif settings.kind == "local":
        yield PartitionedPlacement(settings.simulators)
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


class PartitionedPlacement(LocalPlacement):
    """All in this process, with several simulators that have engines of their own."""

    def __init__(self, simulators: int) -> None:
        self._simulators = simulators

    def simulator(self, scenario: Scenario, sources: Sources) -> PartitionedSimulator:
        parts = [SimulatorPart(playing_simulator(scenario, sources)) for _ in range(self._simulators)]
        return simulator_of(scenario, LocalParts(parts))


class RayPlacement(LocalPlacement):
    """Simulators as actors of Ray; learners, too, or in this process."""

    def __init__(self, settings: ClusterConfig) -> None:
        self._settings = settings
        self.parts: list[RayParts] = []
        """Parts of the simulators that were built."""
        self._learners: ClusterLearners | None = None

    def simulator(self, scenario: Scenario, sources: Sources) -> PartitionedSimulator:
        from marl.cluster.ray_parts import RayParts
        from marl.cluster.simulator_process import Setup

        threads = scenario.schedule.threads or max(1, int(self._settings.cpus))
        parts = RayParts(self._settings, Setup(scenario, sources, threads))
        self.parts.append(parts)
        return simulator_of(scenario, parts)

    def learners(self, scenario: Scenario, sources: Sources) -> LocalLearners:
        from marl.cluster.learners import build_learners

        self._learners = build_learners(scenario, self._settings, sources)
        return self._learners

    def close(self) -> None:
        """End all processes."""
        for parts in self.parts:
            parts.close()
        if self._learners is not None:
            self._learners.close()


def simulator_of(scenario: Scenario, parts: Parts) -> PartitionedSimulator:
    """Return a simulator of the scenario's games and roles that plays in `parts`."""
    schedule = scenario.schedule
    games: Mapping[str, GameConfig] = games_of(scenario)
    simulator = PartitionedSimulator(games, RoleCasting(scenario.roles, schedule.seed), parts)
    simulator.may_drop = schedule.max_drops if schedule.on_error == "drop" else 0
    return simulator
