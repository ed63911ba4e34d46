"""Weights sent to simulators by broadcast, on a real Ray cluster over gloo: the bits of weights in the object store."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from marl.cluster.placement import ShardedPlacement
from marl.core.graph import Trajectory
from marl.core.types import Deal
from marl.models.weights import load_weight_tensors
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from marl.training.build import build
from marl.training.placement import Placement
from marl.training.run import Run
from marl.training.session import NewOrResumedRunStart, StepCallbackMonitor, train_in_folder
from tests.support.ray_clusters import local_cluster
from tests.support.run_processes import contents, kuhn_scenario, tiny_model, two_policy_scenario

pytest.importorskip("ray")
from marl.cluster.ray_placement import RayPlacement

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
SETTINGS = ClusterConfig(simulators=2, cpus=0.5, weight_transfer="broadcast", deadline_s=60.0)
SCHEDULE = {"steps": 4, "groups": 4, "group_size": 4, "threads": 1}
ADAPTER = {"model": {"kind": "adapter", "base": tiny_model(), "rank": 2}, "learner": {"kind": "grpo"}}


@pytest.fixture(scope="module", autouse=True)
def _cluster(made: Path) -> Iterator[None]:
    with local_cluster(2, MARL_CACHE=str(made)):
        yield


@contextmanager
def ray_placement(settings: ClusterConfig = SETTINGS) -> Iterator[RayPlacement]:
    placement = RayPlacement(settings)
    try:
        yield placement
    finally:
        placement.close()


def built(scenario: Scenario, placement: Placement) -> tuple[Run, list[tuple[str, torch.Tensor]]]:
    """A run, and the weights that its learner `actor` publishes at first."""
    run = build(scenario, placement)
    published = load_weight_tensors(run.learners["actor"].publish())
    return run, [(name, tensor.detach().clone()) for name, tensor in published.items()]


def changed(weights: Sequence[tuple[str, torch.Tensor]], version: int) -> list[tuple[str, torch.Tensor]]:
    """Weights that differ from version to version."""
    noise = torch.Generator().manual_seed(version)
    return [(name, tensor + 0.1 * torch.randn(tensor.shape, generator=noise)) for name, tensor in weights]


def played(run: Run, step: int) -> Sequence[Trajectory]:
    return run.simulator.play([Deal(f"{step}.{i}", f"{step}.{i}", i, run.scenario.seats) for i in range(8)])


def process_ids(placement: RayPlacement) -> list[int]:
    return [int(each.place.rpartition(" ")[2]) for each in placement.shard_groups[-1].process_activities()]


def outcome(
    scenario: Scenario, folder: Path, placement: Placement
) -> tuple[list[dict[str, float]], dict[str, bytes], list[dict[str, float]]]:
    """Metrics and files of a run that no clock decides, and the metrics of its cluster."""
    rows: list[dict[str, float]] = []
    monitors = [StepCallbackMonitor(lambda step, metrics: rows.append(dict(metrics)))]
    assert train_in_folder(scenario, folder, NewOrResumedRunStart(), monitors, placement=placement)
    of_clock = ("time/", "crc32", "cluster/")
    kept = [{name: value for name, value in row.items() if not name.startswith(of_clock)} for row in rows]
    files = contents(folder, "checkpoints", "trajectories")
    cluster = [{name: value for name, value in row.items() if name.startswith("cluster/")} for row in rows]
    return kept, {name: data for name, data in files.items() if not name.endswith("manifest.json")}, cluster


def bytes_by_way(rows: Sequence[dict[str, float]]) -> list[tuple[float, float]]:
    return [(row["cluster/broadcast_bytes"], row["cluster/published_bytes"]) for row in rows]


def test_two_policies_that_learn_have_the_bits_of_weights_in_the_object_store(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    scenario = validate(two_policy_scenario())
    with ray_placement(SETTINGS.model_copy(update={"weight_transfer": "store"})) as placement:
        *stored, rows = outcome(scenario, tmp_path / "stored", placement)
    all_bytes = rows[-1]["cluster/published_bytes"]
    with ray_placement() as placement:
        *broadcast, rows = outcome(scenario, tmp_path / "broadcast", placement)
    assert broadcast == stored
    # The metrics of a step count what the step before published. The buffer of a broadcast has gaps between tensors.
    assert all(all_bytes <= sent < 1.5 * all_bytes and not put for sent, put in bytes_by_way(rows[2:]))


def test_of_a_model_with_an_adapter_only_the_adapter_is_broadcast(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    scenario = validate(kuhn_scenario(policies={"actor": ADAPTER}, schedule=SCHEDULE))
    *expected, _ = outcome(scenario, tmp_path / "here", ShardedPlacement(2))
    with ray_placement() as placement:
        *broadcast, rows = outcome(scenario, tmp_path / "broadcast", placement)
        _, adapter = built(scenario, ShardedPlacement(1))
    assert broadcast == expected
    size = sum(tensor.nbytes for _, tensor in adapter)
    assert all("lora" in name for name, _ in adapter)
    assert all(size <= sent < size + 256 * len(adapter) and not put for sent, put in bytes_by_way(rows[2:]))


def test_weights_reach_a_simulator_that_starts_later_and_those_beside_one_that_dies_during_a_broadcast(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARL_CACHE", str(made))
    scenario = validate(kuhn_scenario())
    here, first = built(scenario, ShardedPlacement(2))
    with ray_placement() as placement:
        there, _ = built(scenario, placement)
        shards = placement.shard_groups[-1]
        ways: list[tuple[float, float]] = []
        for version in range(1, 6):
            for run in (here, there):
                if run is there and version == 3:  # it neither confirms nor dies before the broadcast begins
                    stopped = process_ids(placement)[0]
                    os.kill(stopped, signal.SIGSTOP)
                run.simulator.load_weights("actor", changed(first, version), version)
            if version == 3:
                time.sleep(1)
                os.kill(stopped, signal.SIGKILL)
            assert played(there, version) == played(here, version), version
            figures: Any = shards.metrics_of_processes()
            ways.append((figures["cluster/broadcast_bytes"] > 0, figures["cluster/published_bytes"] > 0))
        said = "\n".join(shards.take_lost_shard_messages())
        finished, tickets = (
            set[int](),
            there.simulator.start([Deal(f"6.{i}", "6", i, scenario.seats) for i in range(64)]),
        )
        there.simulator.load_weights("actor", changed(first, 6), 6)  # while both simulators play
        while not finished.issuperset(tickets):
            finished.update(ticket for ticket, _ in there.simulator.poll(1.0))
        figures = shards.metrics_of_processes()
        ways.append((figures["cluster/broadcast_bytes"] > 0, figures["cluster/published_bytes"] > 0))
    # No process is ready for the first weights, one dies at the third, both play at the last. A new group with the new
    # process broadcasts those after the fault.
    assert ways == [(False, True), (True, False), (False, True), (True, False), (True, False), (False, True)]
    assert "a broadcast of actor's weights failed" in said
    assert "simulator 0" in said
    assert "is replaced" in said
