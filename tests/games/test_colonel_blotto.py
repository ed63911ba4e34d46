"""Colonel Blotto against OpenSpiel: rules, payoffs, the value of the game, and the equilibrium."""

from __future__ import annotations

import random
from itertools import permutations
from statistics import fmean
from typing import Any

import numpy as np
import pyspiel
import pytest
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import expected_game_score, exploitability
from pettingzoo.test import api_test, seed_test
from pydantic import ValidationError

from marl.evaluation.game_tree import expected_returns, nash_conv
from marl.games.base import reset_and_play
from marl.games.colonel_blotto import ColonelBlotto, ColonelBlottoConfig, format_division, troop_divisions
from tests.support.small_games import PAIR
from tests.support.uniform_play import uniform_game_tree, uniform_strategy


def blotto(**settings: object) -> ColonelBlottoConfig:
    return ColonelBlottoConfig.model_validate(settings)


def played(config: ColonelBlottoConfig, *moves: str) -> ColonelBlotto:
    game = config.build()
    reset_and_play(game, 0, None, moves)
    return game


def openspiel(troops: int, battlefields: int) -> pyspiel.Game:
    return pyspiel.load_game("blotto", {"coins": troops, "fields": battlefields, "players": 2})


def openspiel_actions(state: pyspiel.State, player: int) -> dict[str, int]:
    """Return our text of each move -> OpenSpiel's number of it."""
    actions: dict[str, int] = {}
    for action in state.legal_actions(player):
        actions[state.action_to_string(player, action).strip("[]").replace(",", " ")] = action
    return actions


@pytest.mark.parametrize(("troops", "battlefields", "count"), [(5, 3, 1000), (10, 3, 500), (6, 4, 500), (3, 2, 100)])
def test_random_games_agree_with_openspiel(troops: int, battlefields: int, count: int) -> None:
    game, rng = blotto(troops=troops, battlefields=battlefields).build(), random.Random(0)
    start = openspiel(troops, battlefields).new_initial_state()
    numbers = openspiel_actions(start, 0)
    for seed in range(count):
        game.reset(seed)
        assert [set(game.infos[agent]["legal"] or ()) for agent in PAIR] == [set(numbers)] * 2
        moves = [rng.choice(list(numbers)) for _ in PAIR]
        theirs = start.clone()
        theirs.apply_actions([numbers[move] for move in moves])
        for move in moves:
            game.step(move)
        assert theirs.is_terminal()
        assert theirs.returns() == [game.rewards[agent] for agent in PAIR]


@pytest.mark.parametrize(("troops", "battlefields"), [(3, 3), (5, 3), (6, 3), (4, 4)])
def test_openspiel_finds_no_better_response_to_the_exported_player(troops: int, battlefields: int) -> None:
    config, theirs = blotto(troops=troops, battlefields=battlefields), openspiel(troops, battlefields)
    in_turns = pyspiel.convert_to_turn_based(theirs)
    numbers = openspiel_actions(theirs.new_initial_state(), 0)
    player: Any = config.reference_players()["nash"]
    policy = spiel_policy.TabularPolicy(in_turns)
    policy.action_probability_array[:] = 0
    for row in policy.action_probability_array:
        for move, chance in player.table["player_0"].items():
            row[numbers[move]] = chance
    assert exploitability.nash_conv(in_turns, policy) == pytest.approx(0, abs=1e-7)
    worth = expected_game_score.policy_value(in_turns.new_initial_state(), [policy, policy])
    assert config.equilibrium.value == pytest.approx(worth[0], abs=1e-7)


@pytest.mark.parametrize("settings", [{}, {"pays": "battlefields"}, {"troops": (5, 4)}], ids=str)
def test_the_exported_player_is_an_equilibrium_of_our_own_tree(settings: dict) -> None:
    config = blotto(**settings)
    tree = uniform_game_tree(config)
    player: Any = config.reference_players()["nash"]
    strategy = {}
    for situation, request in tree.requests.items():
        strategy[situation] = player.move_probabilities(situation.state, tuple(request.options or ()))
    assert nash_conv(tree, strategy) == pytest.approx(0, abs=1e-7)
    assert expected_returns(tree, strategy)["player_0"] == pytest.approx(config.equilibrium.value, abs=1e-7)
    assert nash_conv(tree, uniform_strategy(tree)) > 0.1


def test_with_five_troops_no_division_beats_the_orders_of_3_1_1_and_3_2_0() -> None:
    """Enumeration: uniform play over these nine divisions is an equilibrium, and the exported one uses no other."""
    config = blotto()
    orders = {*permutations((3, 1, 1)), *permutations((3, 2, 0))}
    returns = [fmean(config.reward(division, order) for order in orders) for division in config.divisions_by_player[0]]
    assert max(returns) == pytest.approx(0, abs=1e-12)
    player: Any = config.reference_players()["nash"]
    assert set(player.table["player_0"]) <= {format_division(order) for order in orders}


def test_more_troops_are_worth_more() -> None:
    worth = [blotto(troops=(troops, 4)).equilibrium.value for troops in (3, 4, 5, 6, 12)]
    assert worth == sorted(worth)
    assert worth[1] == pytest.approx(0, abs=1e-9)
    assert worth[-1] == pytest.approx(1), "five on two battlefields cannot lose them against four"
    tree = uniform_game_tree(blotto(troops=(5, 4)))
    assert expected_returns(tree, uniform_strategy(tree))["player_0"] > 0


def test_battlefields_are_paid_one_by_one() -> None:
    by_field = blotto(troops=6, pays="battlefields")
    assert played(by_field, "2 2 2", "6 0 0").rewards == {"player_0": 1.0, "player_1": -1.0}
    assert played(blotto(troops=6), "2 2 2", "6 0 0").rewards == {"player_0": 1.0, "player_1": -1.0}
    assert played(blotto(troops=(6, 3), pays="battlefields"), "2 2 2", "1 1 1").rewards["player_0"] == 3.0
    assert played(by_field, "6 0 0", "0 6 0").rewards == {"player_0": 0.0, "player_1": 0.0}


@pytest.mark.parametrize("move", ["5", "2 2 2", "3 1", "5 0 0 0", "6 -1 0", "5  0 0", "2.5 2.5 0", "", "five 0 0"])
def test_a_division_of_other_troops_is_illegal_and_costs_more_than_the_game(move: str) -> None:
    assert played(blotto(), move).rewards == {"player_0": -1.5, "player_1": 1.5}
    assert played(blotto(pays="battlefields"), move).rewards == {"player_0": -3.5, "player_1": 3.5}


def test_a_player_is_told_its_troops_and_never_the_division_of_the_other() -> None:
    game = played(blotto(troops=(5, 4)))
    assert game.observe("player_0")["text"] == "player_0 . 5 troops . 3 battlefields"
    assert game.infos["player_0"]["together"] == PAIR
    seen = set()
    for move in game.infos["player_0"]["legal"] or ():
        after = played(blotto(troops=(5, 4)), move)
        seen.add(repr((after.observe("player_1"), after.infos["player_1"])))
    assert len(seen) == 1
    assert "`player_0` has 5 troops and `player_1` has 4" in game.rules


def test_divisions_are_as_many_as_the_binomial_coefficient() -> None:
    assert len(troop_divisions(10, 3)) == len({*troop_divisions(10, 3)}) == 66
    assert np.sum(troop_divisions(4, 4), axis=1).tolist() == [4] * 35


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"troops": 0}, "troops\n.*0 is too few"),
        ({"troops": (3, 0)}, "troops\n.*too few"),
        ({"troops": 40}, "troops: 40 can be divided among 3 battlefields in 861 ways; choices: .* at most 300"),
        ({"battlefields": 1}, "battlefields"),
        ({"pays": "money"}, "pays"),
    ],
    ids=str,
)
def test_impossible_settings_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        blotto(**settings)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("illegal", [{}, {"retry": 1, "then": "penalty"}, {"then": "random"}], ids=str)
def test_it_is_an_ordinary_pettingzoo_environment(illegal: dict) -> None:
    config = blotto(illegal=illegal)
    api_test(config.build(), num_cycles=30)
    seed_test(config.build, num_cycles=20)
