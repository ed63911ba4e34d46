"""A machine that is lost under a run: it goes on with fewer processes, and takes new ones up when there is room."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from marl.cluster.learner_group import LearnerProcessResourcesAndDeadlines, LearnerRestartNotice, MultiProcessLearner
from marl.cluster.learner_worker import LearnerProcessSettings
from marl.cluster.placement import ShardedPlacement
from marl.cluster.ray_placement import RayPlacement
from marl.core.types import Metrics
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from marl.trainers.policy_gradient.settings import Grpo
from marl.training.placement import Placement
from marl.training.session import NewOrResumedRunStart, StepCallbackMonitor, train_in_folder
from tests.support.data_parallel_processes import Float64Source
from tests.support.learning_samples import SamplePlan, context, make_samples
from tests.support.run_processes import kuhn_scenario

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

STORE: dict[str, Any] = {"object_store_memory": 100 << 20}
SIMULATOR, LEARNER = 10, 1
"""Processors of each process. Beside simulators, each machine has room for one process of a learner, which reserves the
only GPU that the machine says it has."""


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two machines on loopback: one has room for two simulators, the other for one."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**STORE, "num_cpus": 2 * SIMULATOR + LEARNER, "num_gpus": 1, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=SIMULATOR + LEARNER, num_gpus=1, **STORE)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def rows_of(made: Path, folder: Path, placement: Placement, *monitors: StepCallbackMonitor) -> list[Metrics]:
    """Train; return each step's metrics that do not depend on the clock or on processes."""
    schedule = {"steps": 7, "groups": 6, "group_size": 2, "threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_CACHE", str(made))
        scenario = validate(kuhn_scenario(schedule=schedule, checkpoint={"every": 7, "trajectories": 1.0}))
        assert train_in_folder(scenario, folder, NewOrResumedRunStart(), list(monitors), placement=placement)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    theirs = ("time/", "crc32", "cluster/", "policy/actor/restarts", "policy/actor/idle")
    return [{name: value for name, value in row.items() if not name.startswith(theirs)} for row in rows]


def test_shards_of_a_lost_machine_come_back_from_another_machine(cluster: Any) -> None:
    place = context(source=Float64Source())
    limits = LearnerProcessResourcesAndDeadlines(cpus=LEARNER, gpus=1, deadline_s=20.0, start_s=300.0)

    def group() -> MultiProcessLearner:
        spec = LearnerProcessSettings(Grpo(lr=1e-3), place, 2, "fsdp", 1, 300.0)
        return MultiProcessLearner(spec, limits)

    def learn(learner: MultiProcessLearner, *steps: int) -> None:
        for step in steps:
            learner.update(make_samples(SamplePlan(count=20), seed=step))

    theirs = group()
    learn(theirs, 0, 1, 2)
    expected = dict(theirs.publish())
    theirs.close()
    ours = group()
    learn(ours, 0, 1)
    for machine in list(cluster.worker_nodes):
        cluster.remove_node(machine, allow_graceful=False)
    cluster.add_node(num_cpus=SIMULATOR + LEARNER, num_gpus=1, **STORE)
    with pytest.warns(LearnerRestartNotice):
        learn(ours, 2)
    assert ours.restarts == 1
    published = dict(ours.publish())
    ours.close()
    assert published.keys() == expected.keys()
    assert all(bool((published[name] == expected[name]).all()) for name in expected)


def test_a_run_goes_on_with_fewer_machines_and_takes_up_new_ones(cluster: Any, made: Path, tmp_path: Path) -> None:
    settings = ClusterConfig(
        simulators=3,
        cpus=SIMULATOR,
        learners={"actor": 2},
        learner_cpus=LEARNER,
        learner_gpus=1,
        deadline_s=20.0,
        room_s=2.0,
        start_s=300.0,
    )
    placement, simulators, notes = RayPlacement(settings), dict[int, float](), list[str]()

    def on_step(step: int, metrics: Metrics) -> None:
        simulators[step] = metrics.get("cluster/simulators", 0.0)  # step 0 is an evaluation
        parts = placement.shard_groups[-1]
        notes.extend(parts.take_lost_shard_messages())
        if step == 2:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        if step == 4:
            cluster.add_node(num_cpus=SIMULATOR + LEARNER, num_gpus=1, **STORE)
            until = time.monotonic() + 60
            while any(part.doing in ("waiting for room", "loading weights") for part in parts.process_activities()):
                assert time.monotonic() < until
                time.sleep(0.2)

    with closing(placement), pytest.warns(LearnerRestartNotice) as warned:
        rows = rows_of(made, tmp_path / "run", placement, StepCallbackMonitor(on_step))
    said = "\n".join([*notes, *(str(warning.message) for warning in warned)])
    assert (simulators[2], simulators[4], simulators[7]) == (3, 2, 3), said
    assert "died while" in said
    assert "there was no room for it for 2 s (cluster.room_s)" in said
    assert "1 have come up within 2 s, and go on until there is room for all" in said
    assert "there is room for more processes again" in said
    alone = rows_of(made, tmp_path / "alone", ShardedPlacement(3))
    # With other batch mates, and gradients added up in another order, the last digits differ.
    assert rows[2:] == [pytest.approx(row, rel=1e-3, abs=1e-4) for row in alone[2:]]
