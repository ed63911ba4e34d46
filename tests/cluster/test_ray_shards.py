"""A simulator in parts plays what one alone plays: the same episodes, in order, counted and dropped alike."""

from __future__ import annotations

import pytest

from marl.core.graph import Trajectory
from marl.core.types import Deal, Fork
from marl.engines.scripted import Random
from marl.experience.play_ahead import PlayAheadExperience
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.protocols import GameConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.game_errors import GameError
from marl.rollout.sharded_simulator import ShardedSimulator
from marl.rollout.shards import LocalShardGroup, SimulatorShard
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.cluster import ClusterConfig
from marl.scenario.load import ScenarioError
from tests.support.small_games import FunctionEngine, PenniesConfig, make_deal, make_simulator, random_move

GAME = KuhnPokerConfig()


def divided(
    count: int, game: GameConfig = GAME, *, newest_first: bool = True, max_turns: int = 10_000
) -> tuple[ShardedSimulator, list[FunctionEngine]]:
    engines = [FunctionEngine(random_move, newest_first=newest_first, batch=1) for _ in range(count)]
    casting = make_simulator(game, engines[0]).casting
    simulators = [RolloutSimulator(game, casting, {"actor": engine}, max_turns=max_turns) for engine in engines]
    shards = LocalShardGroup([SimulatorShard(simulator) for simulator in simulators])
    return ShardedSimulator({"": game}, casting, shards), engines


def deals(count: int, step: int = 0) -> list[Deal]:
    return [make_deal(f"{step}.{i}", GAME, seed=i) for i in range(count)]


def test_parts_play_the_episodes_of_one_simulator_in_the_order_of_their_deals() -> None:
    simulator, engines = divided(3)
    alone = make_simulator(GAME, FunctionEngine(random_move))
    assert simulator.play(deals(20)) == alone.play(deals(20))
    assert simulator.tokens == alone.tokens
    assert min(len(engine.requests) for engine in engines) >= 12  # six or seven episodes of two turns or three each


def test_forks_and_questions_are_answered_in_parts_as_in_one() -> None:
    simulator, _ = divided(2)
    alone = make_simulator(GAME, FunctionEngine(random_move))
    past = alone.play(deals(3))
    forks = [Fork(trajectory, 1, n=2) for trajectory in past]
    assert simulator.play_forks(forks) == alone.play_forks(forks)
    again = simulator.play_forks(forks)
    assert again == alone.play_forks(forks)
    names = [trajectory.id for courses in again for trajectory in courses]
    assert names == [f"0.{i}~1..{n}" for i in range(3) for n in (3, 4)]
    requests = [turn.request for trajectory in past for turn in trajectory.turns]
    assert simulator.ask(requests) == alone.ask(requests)
    assert simulator.tokens["credit"] == alone.tokens["credit"]


def test_other_players_are_built_in_every_part_from_their_settings() -> None:
    simulator, engines = divided(2)
    roles = {name: role.model_copy(update={"policy": "other"}) for name, role in simulator.casting.roles.items()}
    played = simulator.variant(RoleRequestBuilder(roles, 1), {"other": Random()}).play(deals(6))
    assert len(played) == 6
    assert not any(engine.requests for engine in engines)
    with pytest.raises(ValueError, match="other: engines of this process"):
        simulator.variant(RoleRequestBuilder(roles, 1), {"other": engines[0]})


def test_dropped_episodes_are_counted_over_all_parts() -> None:
    game = PenniesConfig(rounds=3)
    simulator, _ = divided(2, game, max_turns=2)
    many = [make_deal(f"e{i}", game) for i in range(6)]
    simulator.drops.limit = 6
    assert simulator.play(many) == []
    assert simulator.drops.count == 6
    with pytest.raises(GameError, match="6 episodes were dropped before this one"):
        simulator.play(many)


def by_step(step: int) -> list[Deal]:
    return deals(4, step)


def test_a_queue_without_staleness_is_fresh_play() -> None:
    simulator, _ = divided(2)
    queue, alone = PlayAheadExperience(0), make_simulator(GAME, FunctionEngine(random_move))
    played: list[list[Trajectory]] = [queue.gather(step, by_step, simulator) for step in range(3)]
    assert played == [alone.play(by_step(step)) for step in range(3)]


def test_a_queue_plays_later_steps_ahead_and_returns_each_step_whole_and_once() -> None:
    simulator, _ = divided(2)
    queue = PlayAheadExperience(2)
    ids = [[trajectory.id for trajectory in queue.gather(step, by_step, simulator)] for step in range(4)]
    assert ids == [[f"{step}.{i}" for i in range(4)] for step in range(4)]
    figures = queue.metrics()
    assert figures["queue/ready"] + figures["queue/in_flight"] == 8


def test_an_evaluation_neither_takes_nor_holds_up_the_episodes_that_are_in_flight() -> None:
    simulator, engines = divided(2, newest_first=False)
    tickets = simulator.start(by_step(0))
    evaluated = simulator.variant(simulator.casting).play(deals(8, step=9))
    assert [trajectory.id for trajectory in evaluated] == [f"9.{i}" for i in range(8)]
    asked = sum(len(engine.requests) for engine in engines)
    finished = dict(simulator.poll(0.0))
    assert [trajectory.id for ticket in tickets if (trajectory := finished[ticket])] == [f"0.{i}" for i in range(4)]
    assert asked == sum(len(engine.requests) for engine in engines)  # they were over before


def test_what_has_no_effect_without_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="address: no effect on kind: local"):
        ClusterConfig(kind="local", simulators=2, address="auto")


def test_a_cluster_that_is_too_small_is_refused_with_what_its_machines_have() -> None:
    connection = pytest.importorskip("marl.cluster.connection")
    nodes = [{"NodeManagerAddress": f"10.0.0.{i}", "Resources": {"CPU": 3.0}} for i in range(2)]
    connection.check_cluster_capacity(ClusterConfig(simulators=2, cpus=2), nodes)
    with pytest.raises(ScenarioError, match=r"room for 2 \(10.0.0.0: 3 CPU; 10.0.0.1: 3 CPU\)"):
        connection.check_cluster_capacity(ClusterConfig(simulators=3, cpus=2), nodes)
    with pytest.raises(ScenarioError, match="1 of 1 CPU and 1 GPU each do not fit: there is room for 0"):
        connection.check_cluster_capacity(ClusterConfig(gpus=1), nodes)
