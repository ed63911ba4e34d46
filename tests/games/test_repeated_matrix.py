"""Repeated matrix games against OpenSpiel's payoffs and known equilibria."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pyspiel
import pytest
from pydantic import ValidationError

from marl.engines.scripted import Random
from marl.evaluation.game_tree import Strategy, best_response_return, expected_returns, nash_conv
from marl.games.base import reset_and_play
from marl.games.repeated_matrix import STAGE_GAMES, RepeatedMatrixConfig, RepeatedMatrixGame
from tests.support.uniform_play import uniform_game_tree, uniform_strategy

OPENSPIEL = {
    "rock_paper_scissors": "matrix_rps",
    "biased_rock_paper_scissors": "matrix_brps",
    "matching_pennies": "matrix_mp",
    "shapley": "matrix_shapleys_game",
    "prisoners_dilemma": "matrix_pd",
    "chicken": "matrix_cd",
    "stag_hunt": "matrix_sh",
}
OBLONG = [[[1, -1], [-2, 2], [3, -3]], [[0, 0], [4, -4], [-5, 5]]]
THREE = [[[[1, 2, 3], [0, 0, 0]], [[0, 1, 0], [5, 5, 5]]], [[[1, 0, 1], [0, 0, 2]], [[3, 0, 0], [0, 4, 0]]]]


def game_after(*moves: str, **settings: Any) -> RepeatedMatrixGame:
    game = RepeatedMatrixConfig(**settings).build()
    reset_and_play(game, 0, None, moves)
    return game


@pytest.mark.parametrize("name", OPENSPIEL)
def test_payoffs_and_moves_are_openspiels(name: str) -> None:
    assert OPENSPIEL.keys() == STAGE_GAMES.keys()
    theirs = pyspiel.load_matrix_game(OPENSPIEL[name])
    rows, columns = RepeatedMatrixConfig(table=name).moves_by_player
    assert rows == tuple(theirs.row_action_name(i).lower() for i in range(theirs.num_rows()))
    assert columns == tuple(theirs.col_action_name(j).lower() for j in range(theirs.num_cols()))
    for (i, row), (j, column) in product(enumerate(rows), enumerate(columns)):
        paid = game_after(row, column, table=name).rewards
        assert paid == {"player_0": theirs.row_utility(i, j), "player_1": theirs.col_utility(i, j)}


@pytest.mark.parametrize("name", ["prisoners_dilemma", "biased_rock_paper_scissors"])
def test_a_repeated_game_pays_each_round_as_openspiels(name: str) -> None:
    theirs = pyspiel.create_repeated_game(
        pyspiel.load_matrix_game(OPENSPIEL[name]), {"num_repetitions": 5, "enable_infostate": True}
    )
    config = RepeatedMatrixConfig(table=name, rounds=5)
    rng, game = random.Random(0), config.build()
    for _ in range(50):
        state, totals = theirs.new_initial_state(), [0.0, 0.0]
        game.reset(0)
        for _ in range(5):
            joint = [rng.randrange(len(menu)) for menu in config.moves_by_player]
            state.apply_actions(joint)
            for move, menu in zip(joint, config.moves_by_player, strict=True):
                assert game.infos[game.agent_selection]["legal"] == menu
                game.step(menu[move])
            assert state.rewards() == [game.rewards[agent] for agent in game.seats]
            totals = [total + game.rewards[agent] for total, agent in zip(totals, game.seats, strict=True)]
        assert state.is_terminal()
        assert game.terminations == {"player_0": True, "player_1": True}
        assert state.returns() == totals


def mixed(config: RepeatedMatrixConfig, *chances: tuple[float, ...]) -> Strategy:
    """Return the strategy with these chances of each player's moves in every round."""
    table = {f"player_{i}": dict(zip(config.moves_by_player[i], row, strict=True)) for i, row in enumerate(chances)}
    return {situation: table[situation.agent] for situation in uniform_game_tree(config).requests}


@pytest.mark.parametrize(
    ("name", "chances", "value"),
    [
        ("rock_paper_scissors", (1 / 3, 1 / 3, 1 / 3), 0),
        ("biased_rock_paper_scissors", (1 / 16, 10 / 16, 5 / 16), 0),
        ("matching_pennies", (1 / 2, 1 / 2), 0),
        ("shapley", (1 / 3, 1 / 3, 1 / 3), 1 / 3),
        ("prisoners_dilemma", (0, 1), 1),
        ("chicken", (1 / 2, 1 / 2), 2),
        ("stag_hunt", (1 / 2, 1 / 2), 1),
    ],
)
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_known_equilibrium_in_every_round_cannot_be_exploited(name: str, chances, value: float, rounds: int) -> None:
    config = RepeatedMatrixConfig(table=name, rounds=rounds)
    tree, strategy = uniform_game_tree(config), mixed(config, chances, chances)
    assert nash_conv(tree, strategy) == pytest.approx(0, abs=1e-12)
    assert expected_returns(tree, strategy) == pytest.approx(dict.fromkeys(tree.agents, rounds * value), abs=1e-12)


def test_players_who_choose_at_once_do_not_see_each_other() -> None:
    """Pure rock is exploited by 1 a player; who saw it first could not do better than the other."""
    config = RepeatedMatrixConfig(table="rock_paper_scissors")
    tree = uniform_game_tree(config)
    assert len(tree.requests) == 2
    assert nash_conv(tree, mixed(config, (1, 0, 0), (1, 0, 0))) == 2
    assert nash_conv(tree, uniform_strategy(tree)) == pytest.approx(0, abs=1e-12)
    game = config.build()
    game.reset(0)
    assert game.infos["player_0"]["together"] == ("player_0", "player_1")
    before = game.observe("player_1")["text"]
    game.step("paper")
    assert game.observe("player_1")["text"] == before == "player_1 . choose [rock] [paper] [scissors]"
    assert game.infos["player_1"]["hears"] == ("player_1",)


def test_each_player_reads_the_rounds_before_from_its_own_side() -> None:
    game = game_after("rock", "paper", "scissors", "rock", table="rock_paper_scissors", rounds=3)
    choose = "choose [rock] [paper] [scissors]"
    assert game.observe("player_0")["text"] == f"player_0 . 1_rock_paper 2_scissors_rock . {choose}"
    assert game.observe("player_1")["text"] == f"player_1 . 1_paper_rock 2_rock_scissors . {choose}"
    assert game.infos["player_0"]["state"] == "player_0 1_rock_paper 2_scissors_rock"
    assert len(uniform_game_tree(RepeatedMatrixConfig(table="matching_pennies", rounds=3)).requests) == 2 * (1 + 4 + 16)


def test_each_player_has_the_moves_of_its_own_side_of_the_table() -> None:
    game = game_after("b", "c", table=OBLONG)
    assert game.rewards == {"player_0": -5.0, "player_1": 5.0}
    game.reset(0)
    assert [game.infos[agent]["legal"] for agent in game.seats] == [("a", "b"), ("a", "b", "c")]
    game.step("c")
    assert game.rewards == {"player_0": -5.0, "player_1": 5.0}, "a forfeit costs the worst payoff"
    assert RepeatedMatrixConfig(table=OBLONG).is_zero_sum()
    assert game_after("b", "a", "b", table=THREE).rewards == {"player_0": 0.0, "player_1": 0.0, "player_2": 2.0}
    assert not RepeatedMatrixConfig(table=THREE).is_zero_sum()


def test_moves_can_be_named() -> None:
    named = RepeatedMatrixConfig(table=OBLONG, moves=(("up", "down"), ("left", "middle", "right")))
    game = named.build()
    game.reset(0)
    game.step("down")
    assert game.observe("player_1")["text"] == "player_1 . choose [left] [middle] [right]"
    game.step("middle")
    assert game.rewards == {"player_0": 4.0, "player_1": -4.0}


def test_the_rules_tell_every_payoff() -> None:
    rules = RepeatedMatrixConfig(table="prisoners_dilemma", rounds=3).build().rules
    assert "play 3 rounds" in rules
    assert (
        "cooperate, cooperate: 5, 5; cooperate, defect: 0, 10; defect, cooperate: 10, 0; defect, defect: 1, 1" in rules
    )


def test_against_tit_for_tat_it_pays_to_defect_in_the_last_round_alone() -> None:
    config = RepeatedMatrixConfig(table="prisoners_dilemma", rounds=3)
    tree = uniform_game_tree(config)
    player: Any = config.reference_players()["tit_for_tat"]
    strategy = {
        situation: (player if situation.agent == "player_1" else Random()).move_probabilities(
            situation.state, tuple(request.options or ())
        )
        for situation, request in tree.requests.items()
    }
    assert best_response_return(tree, strategy, "player_0") == 5 + 5 + 10


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"table": "rock"}, "table: no preset 'rock'; .*choices: .*rock_paper_scissors"),
        ({"table": [[1, 2], [3]]}, "is no table; choices: nested lists"),
        ({"table": [[1, 2], [3, 4]]}, "is no table for 1 players; choices: nested lists"),
        ({"table": [[[1], [2]], [[3], [4]]]}, "is no table for 2 players"),
        ({"table": [[[1, float("nan")]]]}, "is no table for 2 players"),
        ({"table": "chicken", "rounds": 0}, "rounds\n.*greater than or equal to 1"),
        ({"table": "chicken", "moves": (("a", "b"),)}, r"choices: \[2, 2\] different names"),
        ({"table": "chicken", "moves": (("a", "A"), ("a", "b"))}, r"choices: \[2, 2\] different names"),
        ({"table": "chicken", "moves": (("a b", "c"), ("a", "b"))}, "moves.0.0\n.*only letters from a to z and digits"),
    ],
)
def test_impossible_settings_are_named(settings: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        RepeatedMatrixConfig.model_validate(settings)
