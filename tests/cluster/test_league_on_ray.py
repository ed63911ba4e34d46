"""Leagues whose simulators and learners are actors of a real Ray cluster: earlier weights speak in every process."""

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
from tests.support.league_scenarios import league, with_exploiter
from tests.support.ray_clusters import local_cluster
from tests.support.run_processes import contents

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
OF_PROCESSES = ("time/", "crc32", "cluster/", "policy/actor/idle", "policy/actor/restarts")


@pytest.fixture(scope="module", autouse=True)
def cluster(made: Path) -> Iterator[None]:
    with local_cluster(4, MARL_CACHE=str(made)):
        yield


def outcome(
    scenario: Scenario, folder: Path, placement: Placement, on_step: Callable[[int], None] = lambda step: None
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return what a short league leaves: metrics that no clock decides, weights of the pool, episodes, judgements."""
    monitors = [StepCallbackMonitor(lambda step, metrics: on_step(step))]
    assert train_in_folder(scenario, folder, NewOrResumedRunStart(), monitors, placement=placement)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in row.items() if not name.startswith(OF_PROCESSES)} for row in rows]
    return kept, contents(folder, "league", "trajectories", "credit")


def test_a_league_with_an_exploiter_and_a_lost_simulator_has_the_bits_of_one_in_this_process(tmp_path: Path) -> None:
    assert train_in_folder(validate(league()), tmp_path / "guests", NewOrResumedRunStart(), [])
    data = with_exploiter()
    data["experience"]["populations"] = {"guests": {"run": f"{tmp_path}/guests@meta"}}
    data["experience"]["players"]["exploiter"]["opponents"] = {"actor": 1, "guests": 1}
    scenario = validate(data)
    rows, files = outcome(scenario, tmp_path / "here", ShardedPlacement(2))
    settings = ClusterConfig(simulators=2, cpus=0.5, learners={"actor": 1}, learner_cpus=0.5)
    placement, notes = RayPlacement(settings), list[str]()

    def strike(step: int) -> None:
        parts = placement.shard_groups[-1]
        notes.extend(parts.take_lost_shard_messages())
        if step == 3:
            os.kill(int(parts.process_activities()[0].place.rpartition(" ")[2]), signal.SIGKILL)

    try:
        assert outcome(scenario, tmp_path / "ray", placement, strike) == (rows, files)
    finally:
        placement.close()
    assert any("simulator 0" in note and "died while" in note for note in notes)
    assert rows[-1]["league/pool"] > 3
    assert any(row.get("league/matches") for row in rows)
    assert rows[-1]["league/exploiter/resets"] > 0
    assert any(row.get("league/exploiter/share/guests") for row in rows)
