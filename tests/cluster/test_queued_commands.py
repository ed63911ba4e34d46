"""Commands that wait for a simulator's process: weights do not accumulate, however long the process has no room."""

from __future__ import annotations

import pytest

from marl.rollout.shards import LoadWeightsCommand, RestoreUsageCommand, ShardCommand

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
