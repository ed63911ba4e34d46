"""Calls of a simulator's process: when it replies, and how often 1,000 of them reply without a result."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from marl.core.graph import compressed_trajectory_line
from marl.core.types import Completion, CompletionFailure, Ticket
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.roles.answering import PlayerRole
from marl.rollout.base import FinishedEpisode
from marl.rollout.forks import EpisodeStart
from marl.rollout.shards import (
    CancelJobsCommand,
    ShardStepReport,
    SimulatorShard,
    SimulatorVariantSettings,
    StartJobsCommand,
)
from marl.scenario.cluster import ClusterConfig
from tests.support.small_games import FunctionEngine, make_deal, make_simulator, random_move

pytest.importorskip("ray")
from marl.cluster.call_timing import call_limit_s
from marl.cluster.simulator_process import SimulatorProcess

GAME = KuhnPokerConfig()


class SilentEngine(FunctionEngine):
    """An engine that answers nothing."""

    def step(self, wait_s: float) -> list[tuple[Ticket, Completion | CompletionFailure]]:
        time.sleep(wait_s)
        return []


def process_with_two_episodes() -> tuple[SimulatorProcess, StartJobsCommand]:
    """Return a process, and a command to play an episode that ends at once (0) and one that never ends (1)."""
    engines = {"quick": FunctionEngine(random_move), "silent": SilentEngine(random_move)}
    roles = {name: PlayerRole(policy=name) for name in engines}
    simulator = make_simulator(GAME, engines, 0, **roles)
    process = SimulatorProcess()
    process._shard = SimulatorShard(simulator)
    starts: dict[Ticket, EpisodeStart] = {}
    for ticket, role in enumerate(roles):
        starts[ticket] = replace(make_deal(f"0.{ticket}", GAME), seats={"player_0": role, "player_1": role}), None
    return process, StartJobsCommand(SimulatorVariantSettings(0, None, simulator.casting), starts)


def test_finished_episodes_are_sent_while_others_are_played_although_the_call_could_last_for_minutes() -> None:
    process, start = process_with_two_episodes()
    reply = process.execute_and_play([start], 600.0)
    assert [ticket for ticket, _ in reply.results] == [0]


def test_a_call_without_a_result_ends_at_its_limit_and_a_cancelled_episode_is_waited_for_no_longer() -> None:
    process, start = process_with_two_episodes()
    process.execute_and_play([start], 600.0)
    assert process.execute_and_play([], 0.05).results == []
    assert process.execute_and_play([CancelJobsCommand(frozenset({1}))], 600.0).results == []


def test_only_an_episode_of_training_comes_with_its_line_and_only_an_idle_process_with_the_report_of_its_step() -> None:
    process, start = process_with_two_episodes()
    process._encodes_episodes = True
    reply = process.execute_and_play([start], 600.0)
    (_, played), *_ = reply.results
    assert isinstance(played, FinishedEpisode)
    assert played.trajectory
    assert played.compressed_line == compressed_trajectory_line(played.trajectory)
    assert reply.idle_report is None
    assert process.execute_and_play([CancelJobsCommand(frozenset({1}))], 600.0).idle_report == ShardStepReport()
    seats = {"player_0": "quick", "player_1": "quick"}
    start_of_evaluation: EpisodeStart = replace(make_deal("1.0", GAME), seats=seats, purpose="eval"), None
    evaluated = StartJobsCommand(start.setup, {2: start_of_evaluation})
    ((_, evaluation),) = process.execute_and_play([evaluated], 600.0).results
    assert isinstance(evaluation, FinishedEpisode)
    assert evaluation.compressed_line is None


@pytest.mark.parametrize(
    ("simulators", "deadline_s", "limit_s"),
    [(1, 120.0, 0.5), (50, 120.0, 0.5), (1000, 120.0, 10.0), (1000, 8.0, 2.0), (1, 1.0, 0.25)],
)
def test_signs_of_life_are_at_most_100_a_second_unless_fewer_than_four_of_a_simulator_fell_within_its_deadline(
    simulators: int, deadline_s: float, limit_s: float
) -> None:
    assert call_limit_s(ClusterConfig(simulators=simulators, deadline_s=deadline_s)) == limit_s
