"""Commands that wait for a simulator's process: weights do not accumulate, however long the process has no room."""

from __future__ import annotations

import pytest

from marl.rollout.shards import (
    EndStepCommand,
    LoadWeightsCommand,
    RestoreUsageCommand,
    ShardCommand,
    ShardStepReport,
)

pytest.importorskip("ray")
from marl.cluster.call_timing import batching_s
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


def test_weights_for_an_idle_simulator_wait_for_its_next_call_and_a_report_does_not() -> None:
    slot = started_slot()
    slot.queue_command(LoadWeightsCommand("actor", "first", 1), is_sent_at_once=False)
    assert not slot.wake.is_set()
    slot.queue_command(RestoreUsageCommand({}))
    assert slot.wake.is_set()


def test_the_step_of_an_idle_simulator_ends_with_its_last_report_which_counts_once() -> None:
    slot = started_slot()
    slot.idle_report = ShardStepReport({"policy/actor/prefix_cache": 0.5})
    assert slot.end_step_if_idle() == ShardStepReport({"policy/actor/prefix_cache": 0.5})
    assert slot.commands == [EndStepCommand()]
    assert not slot.wake.is_set()
    assert slot.idle_report == ShardStepReport()
    slot.kill_process()
    assert slot.end_step_if_idle() is None


def test_weights_alone_are_sent_after_a_hundredth_of_a_second_by_two_simulators_and_after_two_by_a_thousand() -> None:
    assert [batching_s(simulators) for simulators in (2, 64, 1000)] == [0.01, 0.32, 2.0]
