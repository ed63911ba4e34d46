"""Faults of simulators on a real Ray cluster: no room for a process, and errors that Ray cannot send."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator, Mapping

import pytest
import torch

from marl.core.types import Deal
from marl.engines.scripted import Random
from marl.rollout.shards import LoadWeightsCommand
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.placement import sharded_simulator
from tests.support.ray_clusters import local_cluster
from tests.support.run_processes import kuhn_scenario

pytest.importorskip("ray")
import ray
from ray.exceptions import RayTaskError

from marl.cluster.actor_errors import ActorError
from marl.cluster.pending_calls import PendingCalls
from marl.cluster.ray_shards import RayShardGroup
from marl.cluster.simulator_process import SimulatorProcessSettings
from marl.cluster.weight_transfer import PublishedWeights

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
KIND = "tests.cluster.test_simulator_faults:RaisingConfig"


class RaisingConfig(Random):
    """A player that raises an error with a lock, which cannot be pickled."""

    kind: str = KIND

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        raise LookupError("no move for", state, threading.Lock())


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with local_cluster(1):
        yield


def scripted_scenario() -> Scenario:
    scenario = validate(kuhn_scenario(evaluate={"every": 4}))
    actor = scenario.policies["actor"].model_copy(update={"engine": RaisingConfig(), "model": None, "learner": None})
    return scenario.model_copy(update={"policies": {"actor": actor}})


def test_an_error_that_cannot_be_pickled_ends_the_run_at_once_with_its_class_and_text() -> None:
    scenario = scripted_scenario()
    group = RayShardGroup(ClusterConfig(), SimulatorProcessSettings(scenario, {"actor": None}, 1))
    try:
        with pytest.raises(ActorError, match=r"LookupError: .*no move for"):
            sharded_simulator(scenario, group).play([Deal("0.0", "0.0", 0, scenario.seats)])
        assert [each.restarts for each in group.process_activities()] == [0]
    finally:
        group.close()


def test_fifty_updates_beside_a_simulator_without_room_keep_the_weights_of_one() -> None:
    # A simulator of two CPUs never finds room on a machine of one, so it needs no source of its weights.
    group = RayShardGroup(ClusterConfig(cpus=2), SimulatorProcessSettings(scripted_scenario(), {}, 1))
    try:
        for version in range(1, 51):
            group.send_command(LoadWeightsCommand("actor", [("weight", torch.ones(1000))], version))
        for _ in range(50):
            group.step(0.1)  # the other thread takes the commands
            gc.collect()
            if (kept := sum(type(each) is PublishedWeights for each in gc.get_objects())) == 1:
                break
        assert kept == 1
    finally:
        group.close()


def test_a_call_that_fails_leaves_the_results_of_calls_that_ended_at_the_same_time() -> None:
    @ray.remote(num_cpus=0)
    def inverse(number: float) -> float:
        return 1 / number

    async def outcomes() -> list[object]:
        pending = PendingCalls(asyncio.get_running_loop())
        calls = [inverse.remote(number) for number in (1.0, 0.0, 4.0)]
        ray.wait(calls, num_returns=3)
        try:
            return await asyncio.gather(*map(pending.result_of, calls), return_exceptions=True)
        finally:
            pending.close()

    first, failed, last = asyncio.run(asyncio.wait_for(outcomes(), 60))
    assert (first, last) == (1.0, 0.25)
    assert isinstance(failed, RayTaskError)
    assert isinstance(failed, ZeroDivisionError)
