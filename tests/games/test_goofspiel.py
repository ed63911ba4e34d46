"""Goofspiel against OpenSpiel."""

from __future__ import annotations

import random
from collections import defaultdict

import pyspiel
import pytest
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import expected_game_score, exploitability
from pydantic import ValidationError

from marl.evaluation.game_tree import expected_returns, nash_conv
from marl.games.base import reset_and_play
from marl.games.goofspiel import Goofspiel, GoofspielConfig
from tests.support.uniform_play import uniform_game_tree, uniform_strategy

RETURNS = {"win": "win_loss", "points": "point_difference"}


def openspiel(config: GoofspielConfig, *, in_turns: bool = False) -> pyspiel.Game:
    parameters = {
        "num_cards": config.cards,
        "points_order": config.prizes,
        "imp_info": config.bids == "hidden",
        "returns_type": RETURNS[config.pays],
    }
    if in_turns:
        return pyspiel.load_game_as_turn_based("goofspiel", parameters)
    return pyspiel.load_game("goofspiel", parameters)


def game_after(config: GoofspielConfig, prizes: str, *bids: int) -> Goofspiel:
    game = config.build()
    reset_and_play(game, 0, {"prizes": prizes}, map(str, bids))
    return game


def expect_alike(ours: Goofspiel, theirs: pyspiel.State, pairs: dict[str, set[str]]) -> None:
    """Compare legal moves or payoffs, and note which information states (with the player) meet."""
    assert theirs.is_terminal() == any(ours.terminations.values())
    if theirs.is_terminal():
        assert theirs.returns() == [ours._cumulative_rewards[agent] for agent in ours.seats]
        return
    for player, agent in enumerate(ours.seats):
        info = ours.infos[agent]
        assert [str(action + 1) for action in theirs.legal_actions(player)] == list(info["legal"])
        pairs[f"{agent} {info['state']}"].add(f"{agent} {theirs.information_state_string(player)}")


def playouts(count: int, config: GoofspielConfig) -> dict[str, set[str]]:
    """Compare random games with OpenSpiel's, round by round; return our information states with OpenSpiel's."""
    rng, game, start = random.Random(0), config.build(), openspiel(config).new_initial_state()
    pairs: dict[str, set[str]] = defaultdict(set)
    for seed in range(count):
        game.reset(seed)
        theirs, prizes = start.clone(), [int(prize) - 1 for prize in game.prizes]
        while True:
            if theirs.is_chance_node():
                theirs.apply_action(prizes[len(game.bids[0])])
            expect_alike(game, theirs, pairs)
            if theirs.is_terminal():
                break
            bids = [rng.choice(theirs.legal_actions(player)) for player in range(2)]
            theirs.apply_actions(bids)
            for bid in bids:
                game.step(str(bid + 1))
    return pairs


SETTINGS = [
    {"prizes": "random"},
    {"prizes": "descending", "bids": "hidden"},
    {"prizes": "ascending", "pays": "points"},
    {"prizes": "random", "bids": "hidden", "pays": "points"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("cards", "count"), [(3, 500), (4, 500), (13, 50)])
def test_random_games_agree_with_openspiel(cards: int, count: int, settings: dict) -> None:
    config = GoofspielConfig(cards=cards, **settings)
    pairs = playouts(count, config)
    assert all(len(theirs) == 1 for theirs in pairs.values()), "we tell a player at least what OpenSpiel tells it"
    if config.bids == "hidden":
        named = [name for theirs in pairs.values() for name in theirs]
        assert len(set(named)) == len(pairs), "and no more"


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_25_000_random_games_agree_with_openspiel(settings: dict) -> None:
    playouts(25_000, GoofspielConfig(cards=6, **settings))


@pytest.mark.parametrize(
    ("cards", "settings"),
    [
        (3, {"prizes": "random", "bids": "hidden"}),
        (3, {"prizes": "random", "bids": "hidden", "pays": "points"}),
        pytest.param(4, {"prizes": "descending", "bids": "hidden"}, marks=pytest.mark.slow),
        pytest.param(4, {"prizes": "random", "bids": "hidden", "pays": "points"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_uniform_play_has_openspiels_value_and_nashconv(cards: int, settings: dict) -> None:
    config = GoofspielConfig(cards=cards, **settings)
    tree, theirs = uniform_game_tree(config), openspiel(config, in_turns=True)
    tabular = spiel_policy.UniformRandomPolicy(theirs)
    worth = expected_game_score.policy_value(theirs.new_initial_state(), [tabular, tabular])
    assert [*expected_returns(tree, uniform_strategy(tree)).values()] == pytest.approx(worth, abs=1e-12)
    assert nash_conv(tree, uniform_strategy(tree)) == pytest.approx(
        exploitability.nash_conv(theirs, tabular), abs=1e-12
    )


def test_the_trees_have_the_sizes_that_decide_whether_deals_are_exported() -> None:
    assert len(GoofspielConfig().all_start_states() or ()) == 24
    assert sum(start.probability for start in GoofspielConfig().all_start_states() or ()) == pytest.approx(1)
    assert len(GoofspielConfig(cards=5, prizes="descending").all_start_states() or ()) == 1
    assert GoofspielConfig(cards=5).all_start_states() is None
    assert GoofspielConfig(cards=13, prizes="ascending").all_start_states() is None


def test_the_higher_card_wins_the_prize_and_equal_cards_lose_it() -> None:
    assert game_after(GoofspielConfig(cards=3), "3 1 2", 3, 1, 1, 3).rewards == {"player_0": 1.0, "player_1": -1.0}
    tied = GoofspielConfig(cards=3, pays="points")
    assert game_after(tied, "3 1 2", 2, 2, 1, 3).rewards == {"player_0": 0.5, "player_1": -0.5}


def test_a_player_sees_its_side_of_the_rounds_before_and_the_prize_of_this_one() -> None:
    config = GoofspielConfig(cards=4)
    assert config.build().rules.count("`prize1_3 mine1_2 theirs1_1`") == 1
    assert game_after(config, "3 1 2 4").observe("player_1")["text"] == "prize1_3"
    game = game_after(config, "3 1 2 4", 2, 4)
    assert game.observe("player_0")["text"] == "prize1_3 mine1_2 theirs1_4 prize2_1"
    assert game.observe("player_1")["text"] == "prize1_3 mine1_4 theirs1_2 prize2_1"
    assert game.infos["player_1"]["legal"] == ("1", "2", "3")
    hidden = game_after(GoofspielConfig(cards=4, bids="hidden"), "3 1 2 4", 2, 4)
    assert hidden.observe("player_0")["text"] == "prize1_3 mine1_2 lost1 prize2_1"
    assert hidden.observe("player_1")["text"] == "prize1_3 mine1_4 won1 prize2_1"


def test_players_who_bid_at_once_do_not_see_each_other() -> None:
    game = game_after(GoofspielConfig(cards=3), "3 1 2")
    assert game.infos["player_0"]["together"] == ("player_0", "player_1")
    before = game.observe("player_1"), game.infos["player_1"]["legal"]
    game.step("3")
    assert str(before) == str((game.observe("player_1"), game.infos["player_1"]["legal"]))


@pytest.mark.parametrize("bids", [(0,), (5,), (2, 1, 2)], ids=str)
def test_a_card_that_is_not_there_is_illegal_and_costs_more_than_the_game(bids: tuple[int, ...]) -> None:
    assert sorted(game_after(GoofspielConfig(), "1 2 3 4", *bids).rewards.values()) == [-1.5, 1.5]
    by_points = GoofspielConfig(pays="points")
    assert sorted(game_after(by_points, "1 2 3 4", *bids).rewards.values()) == [-5, 5]


@pytest.mark.parametrize("prizes", ["1 2 3", "1 2 3 3", "1234", 5, ["1", "2", "3", "4"]], ids=str)
def test_an_impossible_order_is_named(prizes: object) -> None:
    with pytest.raises(ValueError, match=r"goofspiel: option prizes: .* choices: '1 2 3 4' in any order"):
        GoofspielConfig().build().reset(0, {"prizes": prizes})


@pytest.mark.parametrize(
    "settings", [{"cards": 1}, {"cards": 14}, {"prizes": "sorted"}, {"bids": "secret"}, {"pays": "total"}], ids=str
)
def test_impossible_settings_are_named(settings: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        GoofspielConfig.model_validate(settings)
