"""Runs whose simulators are actors of a real Ray cluster: the bits of a run in one process, whatever dies or hangs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from marl.cluster.placement import ShardedPlacement
from marl.cluster.ray_placement import RayPlacement
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.placement import Placement
from marl.training.session import NewOrResumedRunStart, StepCallbackMonitor, train_in_folder
from tests.support.run_processes import contents, kuhn_scenario

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
Result = tuple[list[dict[str, Any]], dict[str, bytes]]
"""Rows and files of a run."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    """A cluster of two nodes on loopback."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    args = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=args)
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def scenario(made: Path) -> Iterator[Scenario]:
    schedule = {"steps": 4, "groups": 6, "group_size": 4, "threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        yield validate(
            kuhn_scenario(schedule=schedule, evaluate={"every": 4, "nashconv": True, "against": {"random": 6}})
        )


def outcome(run: Path) -> Result:
    """Metrics that depend neither on the clock nor on processes, weights, states and trajectories."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if not k.startswith(("time/", "crc32", "cluster/"))} for row in rows]
    files = contents(run, "checkpoints", "trajectories")
    return kept, {name: data for name, data in files.items() if not name.endswith("manifest.json")}


def trained(
    scenario: Scenario, folder: Path, placement: Placement, on_step: Callable[[int], None] = lambda step: None
) -> Result:
    monitors = [StepCallbackMonitor(lambda step, metrics: on_step(step))]
    assert train_in_folder(scenario, folder, NewOrResumedRunStart(), monitors, placement=placement)
    return outcome(folder)


@pytest.fixture(scope="module")
def whole(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """What a run with two simulators in this process gives."""
    return trained(scenario, tmp_path_factory.mktemp("local") / "run", ShardedPlacement(2))


def on_ray(scenario: Scenario, folder: Path, wound: dict[int, int]) -> tuple[Result, list[str]]:
    """What the same gives on the cluster, and messages about processes; `wound`: step -> signal to simulator 0."""
    placement = RayPlacement(ClusterConfig(simulators=2, deadline_s=20.0))
    notes: list[str] = []

    def strike(step: int) -> None:
        parts = placement.shard_groups[-1]
        notes.extend(parts.take_lost_shard_messages())
        if step in wound:
            os.kill(int(parts.process_activities()[0].place.rpartition(" ")[2]), wound[step])

    try:
        result = trained(scenario, folder, placement, strike)
        return result, notes
    finally:
        placement.close()


def test_simulators_in_other_processes_give_the_bits_of_simulators_in_this_one(
    nodes: None, scenario: Scenario, whole: Any, tmp_path: Path
) -> None:
    result, notes = on_ray(scenario, tmp_path / "run", {})
    assert result == whole
    assert notes == []


def test_a_run_whose_simulators_are_killed_and_stopped_is_the_run_that_was_not(
    nodes: None, scenario: Scenario, whole: Any, tmp_path: Path
) -> None:
    result, notes = on_ray(scenario, tmp_path / "run", {1: signal.SIGKILL, 2: signal.SIGSTOP})
    assert result == whole
    said = "\n".join(notes)
    assert "simulator 0" in said
    assert "died while" in said
    assert "gave no sign of life for 20 s" in said
