"""Search in games whose agents move at once: known equilibria, exact NashConv, no look at the others' moves."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from marl.core.zero_sum import nash_equilibrium
from marl.engines.scripted import Random
from marl.evaluation.search_policy import exact_search_metrics
from marl.games.repeated_matrix import RepeatedMatrixConfig
from marl.protocols import GameConfig
from marl.scenario.load import validate
from marl.search.evaluation import SearchEvaluation
from marl.search.evaluators import RolloutOrCriticEvaluator
from marl.search.mcts import SearchResult, run_searches_in_parallel, search
from marl.search.play import SearchPlayer, SearchRoles
from marl.search.positions import SearchPosition
from marl.search.settings import SearchSettings
from tests.support.small_games import make_deal, make_simulator


def search_for_all(config: GameConfig, simulations: int, moves: tuple[str, ...] = ()) -> list[SearchResult]:
    """Return the result of a search for each agent after `moves`."""
    game = config.build()
    game.reset(0)
    for move in moves:
        game.step(move)
    settings = SearchSettings(simulations=simulations, prior="uniform")
    searches = []
    for agent in game.possible_agents:
        searches.append(search(SearchPosition(game.copy(0)), settings, random.Random(0), agent))
    return run_searches_in_parallel(searches, RolloutOrCriticEvaluator(settings))


@pytest.mark.parametrize("table", ["biased_rock_paper_scissors", "rock_paper_scissors", "matching_pennies"])
def test_average_strategies_approach_the_equilibrium_of_a_matrix(table: str) -> None:
    config = RepeatedMatrixConfig(table=table, rounds=1)
    equilibrium = nash_equilibrium(config.payoff_array[..., 0])
    row, column = search_for_all(config, 1000)
    assert row.policy == pytest.approx(equilibrium.row, abs=0.05)
    assert column.policy == pytest.approx(equilibrium.column, abs=0.05)
    assert sum(row.visits) == sum(column.visits) == 1000
    assert row.is_mixed


def test_a_dominant_move_is_found_by_both_players_of_a_general_sum_game() -> None:
    # In the last round of the prisoner's dilemma, to defect is the best answer to everything.
    config = RepeatedMatrixConfig(table="prisoners_dilemma", rounds=2)
    for result in search_for_all(config, 300, ("cooperate", "cooperate")):
        assert result.policy[result.moves.index("defect")] > 0.9


def test_exploitability_in_goofspiel_falls_with_the_budget() -> None:
    scenario = validate(
        {
            "game": {"kind": "goofspiel", "cards": 3, "prizes": "descending"},
            "seats": {"player_0": "player", "player_1": "player"},
            "roles": {"player": {"kind": "player", "policy": "actor"}},
            "policies": {"actor": {"engine": {"kind": "random"}}},
            "schedule": {"steps": 1, "groups": 2, "group_size": 1},
        },
        "test",
        to_train=False,
    )
    simulator = make_simulator(scenario.game, Random().build(None))
    values: list[float] = []
    for simulations in (4, 400):
        settings = SearchSettings(simulations=simulations, prior="uniform")
        metrics = exact_search_metrics(scenario, simulator, SearchEvaluation(settings))
        values.append(metrics["eval/nashconv"])
        # The game is symmetric, so its value is 0.
        assert simulations == 4 or metrics["eval/value/player_0"] == pytest.approx(0, abs=0.05)
    assert values[1] < 0.1 < values[0]


def test_agents_that_move_at_once_draw_independently() -> None:
    game = RepeatedMatrixConfig(table="matching_pennies", rounds=1)
    simulator = make_simulator(game, Random().build(None))
    settings = SearchSettings(simulations=30, prior="uniform")
    deals = [make_deal(f"e{seed}", game, seed) for seed in range(40)]
    episodes = SearchPlayer(simulator, settings, SearchRoles(["player"], {})).play(deals)
    joint = Counter(tuple(str(turn.action) for turn in episode.turns) for episode in episodes)
    assert len(joint) == 4
    # Neither turn read the other.
    assert all(not episode.graph.edges for episode in episodes)
