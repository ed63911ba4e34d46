"""Commands that wait for a simulator's process: weights do not accumulate, however long the process has no room."""

from __future__ import annotations

import gc

import pytest
import torch

from marl.rollout.shards import LoadWeightsCommand, RestoreUsageCommand, ShardCommand
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import validate
from tests.support.ray_clusters import local_cluster
from tests.support.run_processes import kuhn_scenario

pytest.importorskip("ray")
from marl.cluster.simulator_slot import RestartableSimulator


def started_slot() -> RestartableSimulator:
    slot = RestartableSimulator(0)
    slot.process_started([])
    return slot


def test_of_queued_weights_only_the_newest_of_each_policy_are_kept_before_the_jobs_that_need_them() -> None:
    slot, other = started_slot(), RestoreUsageCommand({})
    commands: list[ShardCommand] = [
        LoadWeightsCommand("actor", "first", 1),
        LoadWeightsCommand("critic", "first", 1),
        other,
        LoadWeightsCommand("actor", "second", 2),
    ]
    for command in commands:
        slot.queue_command(command)
    assert slot.commands == [LoadWeightsCommand("actor", "second", 2), commands[1], other]


def test_a_simulator_without_a_process_queues_nothing_since_a_new_process_gets_the_current_weights() -> None:
    slot = RestartableSimulator(0)
    slot.queue_command(LoadWeightsCommand("actor", "first", 1))
    assert slot.commands == []
    slot.process_started([LoadWeightsCommand("actor", "second", 2)])
    assert slot.commands == [LoadWeightsCommand("actor", "second", 2)]
    slot.kill_process()
    slot.queue_command(LoadWeightsCommand("actor", "third", 3))
    assert slot.commands == []


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_fifty_updates_beside_a_simulator_without_room_keep_the_weights_of_one() -> None:
    scenario = validate(kuhn_scenario(evaluate={"every": 4}))
    with local_cluster(1):
        from marl.cluster.ray_shards import RayShardGroup
        from marl.cluster.simulator_process import SimulatorProcessSettings
        from marl.cluster.weight_transfer import PublishedWeights

        # A simulator of two CPUs never finds room on a machine of one, so it needs no source of its weights.
        group = RayShardGroup(ClusterConfig(cpus=2), SimulatorProcessSettings(scenario, {}, 1))
        try:
            for version in range(1, 51):
                group.send_command(LoadWeightsCommand("actor", [("weight", torch.ones(1000))], version))
            for _ in range(50):
                group.step(0.1)  # the other thread takes the commands
                gc.collect()
                if (kept := sum(isinstance(each, PublishedWeights) for each in gc.get_objects())) == 1:
                    break
            assert kept == 1
        finally:
            group.close()
