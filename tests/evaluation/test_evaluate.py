"""Matches with intervals, optimal moves, and how figures are told."""

import math
from statistics import fmean
from typing import Any

import pytest
import yaml
from scipy import stats

from marl.commands.eval.evaluate import format_metrics
from marl.core.statistics import difference_interval, wilson_interval
from marl.engines.scripted import Random, ScriptedConfig
from marl.evaluation.evaluate import (
    Evaluator,
    MatchReturns,
    OpponentPlayers,
    move_probability_metrics,
    opponent_engine_settings,
    optimal_move_metrics,
    play_match,
    positions_with_optimal_moves,
    win_draw_loss_metrics,
)
from marl.evaluation.game_tree import build_game_tree
from marl.games.kuhn_poker import KuhnPokerConfig
from marl.games.nim import NimConfig, OptimalNimPlayer, winning_moves_on_pile
from marl.games.tic_tac_toe import (
    TicTacToeConfig,
    TicTacToeMinimax,
    best_moves,
    legal_cells,
    minimax_value,
    unfinished_boards,
)
from marl.protocols import Engine, GameConfig
from marl.roles.answering import PlayerRole
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.load import validate
from marl.scenario.schema import Scenario
from tests.support.failing_games import FailingTicTacToeConfig
from tests.support.paths import SCENARIOS
from tests.support.small_games import make_simulator

# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (81, 263), (15, 148), (1, 29), (600, 1000)]
)
def test_wilson_intervals_are_scipys(hits: int, n: int) -> None:
    theirs = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson_interval(hits, n) == pytest.approx((theirs.low, hits / n, theirs.high), abs=1e-12)


def test_wilson_intervals_are_the_published_ones() -> None:
    # Newcombe 1998, table I, method 3 (score, without continuity correction).
    table_1 = ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718))
    for hits, n, low, high in table_1:
        found_low, _, found_high = wilson_interval(hits, n)
        assert (round(found_low, 4), round(found_high, 4)) == (low, high)


def test_intervals_of_differences_are_the_published_ones() -> None:
    # Newcombe 1998, "Interval estimation for the difference between independent proportions", table II, method 10.
    table_2 = ((56, 70, 48, 80, 0.0524, 0.3339), (9, 10, 3, 10, 0.1705, 0.8090), (10, 10, 0, 20, 0.6791, 1.0000))
    for hits, n, other_hits, other_n, low, high in table_2:
        found = difference_interval(wilson_interval(other_hits, other_n), wilson_interval(hits, n))
        assert found == pytest.approx((low, hits / n - other_hits / other_n, high), abs=5e-5)


def test_a_score_has_the_mean_and_the_rates_of_wins_draws_and_losses() -> None:
    figures = win_draw_loss_metrics([1.0, 2.0, 0.0, -3.0])
    assert (figures["mean"], figures["win"], figures["draw"], figures["loss"]) == (0.0, 0.5, 0.25, 0.25)
    # stdev of 1, 2, 0, -3 is sqrt(14 / 3).
    assert figures["mean_high"] == pytest.approx(1.959964 * math.sqrt(14 / 3) / 2, rel=1e-6)
    assert win_draw_loss_metrics([1.0])["mean_high"] == math.inf


# --- matches ---------------------------------------------------------------------------------------------------------


def scenario(game: dict[str, Any], **more: Any) -> Scenario:
    seats = {"player_0": "player", "player_1": "player"}
    policies = {"actor": {"model": {"kind": "tiny"}, "learner": {"kind": "grpo"}}}
    return Scenario.model_validate(
        {
            "game": game,
            "seats": seats,
            "roles": {"player": {"kind": "player", "policy": "actor"}},
            "policies": policies,
            "schedule": {"steps": 1, "groups": 1, "group_size": 2},
            **more,
        }
    )


def contest(player: ScriptedConfig, against: str, game: str, episodes: int) -> MatchReturns:
    setting = scenario({"kind": game})
    laid = make_simulator(setting.game, player.build(None))
    return play_match(setting, laid, OpponentPlayers.from_scripted_player(setting, against), episodes=episodes, seed=0)


def test_seats_are_balanced_over_the_same_starts() -> None:
    setting = scenario({"kind": "kuhn_poker"})
    laid = make_simulator(setting.game, Random().build(None))
    results = play_match(setting, laid, OpponentPlayers.from_scripted_player(setting, "nash"), episodes=100, seed=0)
    assert {seat: len(returns) for seat, returns in results.returns.items()} == {"player_0": 50, "player_1": 50}
    again = play_match(setting, laid, OpponentPlayers.from_scripted_player(setting, "nash"), episodes=100, seed=0)
    assert results == again
    assert (
        play_match(setting, laid, OpponentPlayers.from_scripted_player(setting, "nash"), episodes=100, seed=1)
        != results
    )


def test_minimax_never_loses_to_random_moves_and_draws_with_itself() -> None:
    metrics = contest(TicTacToeMinimax(), "random", "tic_tac_toe", 400).metrics("m")
    assert metrics["m/loss"] == 0.0
    assert metrics["m/win"] > 0.85
    assert contest(TicTacToeMinimax(), "minimax", "tic_tac_toe", 50).metrics("m")["m/draw"] == 1.0


def test_returns_belong_to_the_measured_seat_when_episodes_were_dropped() -> None:
    game = FailingTicTacToeConfig()
    setting = scenario({"kind": game.kind})
    simulator = make_simulator(game, TicTacToeMinimax().build(None))
    simulator.drops.limit = 1000
    results = play_match(
        setting, simulator, OpponentPlayers.from_scripted_player(setting, "random"), episodes=400, seed=0
    )
    figures = results.metrics("m")
    assert simulator.drops.count > 20
    assert figures["m/episodes"] == 400 - simulator.drops.count
    # Minimax never loses; returns of the wrong seat would be the random player's.
    assert (figures["m/loss"], figures["m/player_0/loss"], figures["m/player_1/loss"]) == (0.0, 0.0, 0.0)


def test_a_match_without_any_result_has_no_mean() -> None:
    assert win_draw_loss_metrics([]) == {"episodes": 0.0}


def test_seats_that_answer_by_rule_are_not_measured() -> None:
    setting = validate(yaml.safe_load((SCENARIOS / "team_arithmetic.yaml").read_text()))
    engines: dict[str, Engine] = {}
    for policy, settings in setting.policies.items():
        engines[policy] = (settings.engine if settings.engine.is_rule_based else Random()).build(None)
    simulator = make_simulator(setting.game, engines, **setting.roles)
    results = play_match(
        setting, simulator, OpponentPlayers.from_scripted_player(setting, "random"), episodes=6, seed=0
    )
    rule_seats = {seat for seat, role in setting.seats.items() if role in setting.rule_based_roles}
    assert rule_seats
    assert set(results.returns) == set(setting.seats) - rule_seats


def test_random_play_of_tic_tac_toe_has_its_known_value_within_its_own_interval() -> None:
    # By enumeration of the whole tree: +0.296825 to the first player (585/945 - 303/945 by enumeration, 120/945 draws).
    metrics = contest(Random(), "random", "tic_tac_toe", 1600).metrics("m")
    assert metrics["m/player_0/mean_low"] < 0.296825 < metrics["m/player_0/mean_high"]
    assert metrics["m/player_1/mean_low"] < -0.296825 < metrics["m/player_1/mean_high"]
    assert metrics["m/episodes"] == 1600
    assert metrics["m/player_0/mean_high"] - metrics["m/player_0/mean_low"] < 0.13


def test_uniform_play_of_kuhn_poker_against_its_equilibrium_loses() -> None:
    assert contest(Random(), "nash", "kuhn_poker", 1000).metrics("m")["m/mean_high"] < 0


def test_a_seat_without_episodes_has_no_figures() -> None:
    metrics = contest(Random(), "random", "kuhn_poker", 1).metrics("m")
    assert metrics["m/player_0/episodes"] == 1
    assert not [name for name in metrics if name.startswith("m/player_1")]


def test_an_unknown_opponent_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="no opponent 'minmax' for game 'tic_tac_toe'; choices: minimax, random"):
        opponent_engine_settings(TicTacToeConfig(), "minmax")


# --- optimal moves ---------------------------------------------------------------------------------------------------


def laid_for(game: GameConfig, player: ScriptedConfig) -> RolloutSimulator:
    return make_simulator(game, player.build(None), player=PlayerRole(policy="actor"))


def optimal(game: GameConfig, player: ScriptedConfig) -> dict[str, float]:
    laid = laid_for(game, player)
    return optimal_move_metrics(
        positions_with_optimal_moves(game, laid.casting, {"player_0": "player", "player_1": "player"}), laid
    )


def test_the_perfect_nim_player_always_plays_an_optimal_move() -> None:
    assert optimal(NimConfig(), OptimalNimPlayer()) == {"eval/optimal": 1.0, "eval/legal_mass": 1.0}


def test_the_random_nim_player_plays_one_as_often_as_there_are_few() -> None:
    # A pile with an optimal move has exactly one, among min(pile, 3) legal ones; a pile of 1 leaves no choice.
    game = NimConfig()
    chances = [1 / min(pile, 3) for pile in range(2, game.piles[1] + 1) if winning_moves_on_pile(pile, 3)]
    assert game.max_take == 3
    assert optimal(game, Random())["eval/optimal"] == pytest.approx(fmean(chances), abs=1e-12)


def test_the_random_tic_tac_toe_player_plays_one_as_often_as_counting_says() -> None:
    boards = [b for b in unfinished_boards() if minimax_value(b) >= 0 and len(best_moves(b)) < len(legal_cells(b))]
    expected = fmean(len(best_moves(board)) / len(legal_cells(board)) for board in boards)
    assert optimal(TicTacToeConfig(), Random())["eval/optimal"] == pytest.approx(expected, abs=1e-12)


def test_both_exact_figures_of_one_game_share_the_smaller_legal_mass() -> None:
    game = NimConfig(piles=(1, 6))
    laid = laid_for(game, Random())
    seats = {"player_0": "player", "player_1": "player"}
    tree, found = build_game_tree(game, laid.casting, seats), positions_with_optimal_moves(game, laid.casting, seats)
    both = move_probability_metrics(tree, found, laid)
    assert both == {
        **move_probability_metrics(tree, [], laid),
        **optimal_move_metrics(found, laid),
        "eval/legal_mass": both["eval/legal_mass"],
    }
    assert both["eval/legal_mass"] == min(
        move_probability_metrics(tree, [], laid)["eval/legal_mass"],
        optimal_move_metrics(found, laid)["eval/legal_mass"],
    )
    assert move_probability_metrics(None, [], laid) == {}


def test_an_evaluator_measures_what_the_scenario_asks_for() -> None:
    setting = scenario({"kind": "kuhn_poker"}, evaluate={"nashconv": True, "against": {"nash": 20, "random": 10}})
    measure = Evaluator(setting, make_simulator(KuhnPokerConfig(), Random().build(None)))
    metrics = measure(0)
    assert metrics["eval/nashconv"] == pytest.approx(11 / 12)
    assert (metrics["eval/nash/episodes"], metrics["eval/random/episodes"]) == (20, 10)
    assert not Evaluator(
        scenario({"kind": "kuhn_poker"}), make_simulator(KuhnPokerConfig(), Random().build(None))
    ).requests_any_metrics


FIGURES = (("turns", 4.0), ("tokens", 0.0))


def test_figures_are_told_with_their_intervals_and_a_warning_where_they_do_not_count() -> None:
    told = format_metrics(
        {"eval/nashconv": 0.5, "eval/legal_mass": 0.97, "m/win": 0.5, "m/win_low": 0.4, "m/win_high": 0.6}
    )
    assert "0.5000  [0.4000, 0.6000]" in told
    assert told.endswith("exact figures do not count: legal mass 0.9700 is below 0.98")
    assert "do not count" not in format_metrics({"eval/legal_mass": 0.99})


def test_figures_that_are_0_as_a_role_answers_by_rule_are_not_shown() -> None:
    roles = {f"eval/held_out/role/{role}/{name}": value for role in ("judge", "solver") for name, value in FIGURES}
    lines = format_metrics({**roles, "eval/held_out/success": 0.0}, {"judge"}).splitlines()
    assert [line.split()[0].removeprefix("eval/held_out/") for line in lines] == [
        "role/judge/turns",
        "role/solver/turns",
        "role/solver/tokens",
        "success",
    ]
