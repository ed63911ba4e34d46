"""Start of a run on a Ray cluster that has room for all processes only once another machine has joined it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from marl.cluster.ray_placement import RayPlacement
from marl.rollout.base import ProcessActivity
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from marl.training.build import prepare_models
from tests.support.run_processes import kuhn_scenario

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
STORE: dict[str, Any] = {"object_store_memory": 100 << 20}
DEADLINE_S = 120.0
"""Maximum time of each wait: far more than is needed, so that a busy machine fails no test."""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """One machine of two processors on loopback."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**STORE, "num_cpus": 2, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_run_waits_for_machines_and_leaves_a_whole_machine_to_its_learner(
    cluster: Any, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    settings = ClusterConfig(simulators=2, learners={"actor": 1}, learner_cpus=2, wait_s=DEADLINE_S, start_s=DEADLINE_S)
    scenario = validate(kuhn_scenario(schedule={"steps": 1, "groups": 2, "group_size": 2, "threads": 1}))
    sources = prepare_models(scenario, scenario.policies)
    # Ray lets only the main thread add a machine.
    with closing(RayPlacement(settings)) as placement, ThreadPoolExecutor(1) as thread:
        simulator = thread.submit(placement.build_simulator, scenario, sources)
        [waiting] = await_activities(placement, lambda activities: bool(activities))
        assert waiting.doing.startswith("waiting for machines: cluster.learners: 1 processes of learners and 2 sim")
        assert not simulator.done()
        cluster.add_node(num_cpus=2, **STORE)
        simulator.result(DEADLINE_S)
        # Simulators that start first must not take a processor of each machine, which would leave no room.
        await_activities(placement, lambda activities: all(each.place for each in activities))
        learners = thread.submit(placement.build_learners, scenario, sources).result(DEADLINE_S)
        assert [each.doing for each in learners.process_activities()] == ["idle"]


def await_activities(
    placement: RayPlacement, is_reached: Callable[[list[ProcessActivity]], bool]
) -> list[ProcessActivity]:
    until = time.monotonic() + DEADLINE_S
    while not is_reached(activities := placement.process_activities()[0]):
        assert time.monotonic() < until, activities
        time.sleep(0.05)
    return activities
