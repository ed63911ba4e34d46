"""Small teams at real tables, for credit rules that play what did not happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from marl.core.graph import Trajectory
from marl.core.types import Credit, Metrics
from marl.engines.scripted import Random, ScriptedConfig
from marl.evaluation.game_tree import GameTree, GameTreeNode, Strategy, build_game_tree, expected_returns
from marl.protocols import AssignConfig, Evidence, GameConfig
from marl.rollout.simulator import RolloutSimulator
from tests.support.small_games import FunctionEngine, make_deal, make_simulator


def fixed_moves_engine(moves: Mapping[str, str]) -> FunctionEngine:
    """Each agent says its move; for games whose state begins with the agent's name."""
    return FunctionEngine(lambda request: (request.options or {})[moves[request.state.split()[0]]])


def play_joint_move(game: GameConfig, moves: Sequence[str]) -> tuple[RolloutSimulator, Trajectory]:
    """One round in which `agent_0`, `agent_1`, ... say these moves."""
    simulator = make_simulator(game, fixed_moves_engine({f"agent_{place}": move for place, move in enumerate(moves)}))
    [trajectory] = simulator.play([make_deal("e", game)])
    assert [turn.action for turn in trajectory.turns] == list(moves)
    return simulator, trajectory


def scripted_simulator(game: GameConfig, player: ScriptedConfig | None = None, seed: int = 0) -> RolloutSimulator:
    """Everybody plays like `player`; default: at random."""
    return make_simulator(game, (player or Random()).build(None), seed)


def episodes(simulator: RolloutSimulator, game: GameConfig, many: int, **options: Any) -> list[Trajectory]:
    return simulator.play([make_deal(f"e{seed}", game, seed, **options) for seed in range(many)])


def assign_credit(
    rule: AssignConfig, simulator: RolloutSimulator | None, *trajectories: Trajectory, seed: int = 0
) -> tuple[Credit, Metrics]:
    """What a rule says of trajectories, and of itself."""
    part = rule.build()
    return part(Evidence(trajectories, "a_game", simulator=simulator, seed=seed)), part.metrics()


def first_advantages(credit: Credit, trajectory: Trajectory) -> dict[str, float]:
    """What each agent's first turn is worth, of those that are judged."""
    return {turn.agent: credit[turn.id].value for turn in reversed(trajectory.turns) if turn.id in credit}


def expected_return(
    tree: GameTree, moves: Sequence[str], strategy: Strategy, start: int = 0, agents: Sequence[str] = ()
) -> float:
    """What `agents` (default: all) can expect together after `moves`, all that was paid until then included."""
    node: GameTreeNode = tree.roots[start][1]
    paid, team = 0.0, agents or tree.agents
    for move in moves:
        paid += sum(node.rewards.get(agent, 0.0) for agent in team)
        node = node.moves[move]
    values_of = expected_returns(replace(tree, roots=((1.0, node),)), strategy)
    return paid + sum(values_of[agent] for agent in team)


def table_strategy(
    simulator: RolloutSimulator, game: GameConfig, rows: Mapping[str, Mapping[str, float]]
) -> tuple[GameTree, Strategy]:
    """The whole game, and the strategy of players with the table `rows` (state -> move -> chance), else at random."""
    tree = build_game_tree(game, simulator.casting, dict.fromkeys(game.build().possible_agents, "player"))
    strategy = {
        situation: rows.get(situation.state) or dict.fromkeys(request.options or {}, 1 / len(request.options or {}))
        for situation, request in tree.requests.items()
    }
    return tree, strategy
