"""First-price auction against OpenSpiel, and its equilibria against theory and exact best responses."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pyspiel
import pytest
from pydantic import ValidationError

from marl.evaluation.game_tree import expected_returns, nash_conv
from marl.games.base import reset_and_play
from marl.games.first_price_auction import FirstPriceAuction, FirstPriceAuctionConfig
from tests.support.uniform_play import uniform_game_tree, uniform_strategy


def auction(**settings: object) -> FirstPriceAuctionConfig:
    return FirstPriceAuctionConfig.model_validate(settings)


def played(config: FirstPriceAuctionConfig, deal: str, *bids: int) -> FirstPriceAuction:
    game = config.build()
    reset_and_play(game, 0, {"values": deal}, map(str, bids))
    return game


def openspiel_returns(state: pyspiel.State) -> list[float]:
    """Return OpenSpiel's returns, on average over the lot that it draws for a tie."""
    if state.is_terminal():
        return state.returns()
    totals = [0.0] * state.num_players()
    for action, chance in state.chance_outcomes():
        for player, value in enumerate(openspiel_returns(state.child(action))):
            totals[player] += chance * value
    return totals


@pytest.mark.parametrize(("players", "max_value", "count"), [(2, 10, 1000), (3, 5, 700), (5, 3, 300)])
def test_random_games_agree_with_openspiel(players: int, max_value: int, count: int) -> None:
    game, rng = auction(players=players, max_value=max_value).build(), random.Random(0)
    root = pyspiel.load_game("first_sealed_auction", {"players": players, "max_value": max_value}).new_initial_state()
    for seed in range(count):
        game.reset(seed)
        theirs = root.clone()
        for value in game.values:
            chances = dict(theirs.chance_outcomes())
            assert chances[value] == pytest.approx(1 / max_value)
            theirs.apply_action(value)
        for player, agent in enumerate(game.seats):
            legal = game.infos[agent]["legal"] or ()
            assert list(map(str, theirs.legal_actions())) == list(legal)
            assert theirs.current_player() == player
            bid = rng.choice(legal)
            theirs.apply_action(int(bid))
            game.step(bid)
        assert [game.rewards[agent] for agent in game.seats] == pytest.approx(openspiel_returns(theirs), abs=1e-12)


@pytest.mark.parametrize(("players", "max_value"), [(2, 5), (2, 7), (2, 8), (3, 4)])
def test_an_exported_equilibrium_cannot_be_exploited_in_the_game_itself(players: int, max_value: int) -> None:
    config = auction(players=players, max_value=max_value)
    tree = uniform_game_tree(config)
    player: Any = config.reference_players()["nash"]
    for bids in config.equilibria:
        strategy = {}
        for situation, request in tree.requests.items():
            value = int(situation.state.split(" ")[-1])
            strategy[situation] = {str(bids[value - 1]): 1.0}
            if bids == config.equilibria[0]:
                assert player.move_probabilities(situation.state, tuple(request.options or ())) == strategy[situation]
        assert nash_conv(tree, strategy) == pytest.approx(0, abs=1e-9)
    assert nash_conv(tree, uniform_strategy(tree)) > 0.1


def test_regret_is_the_exact_gain_of_one_deviator() -> None:
    config, bids = auction(max_value=4), (0, 1, 2, 3)
    tree = uniform_game_tree(config)
    strategy = {s: {str(bids[int(s.state.split(" ")[-1]) - 1]): 1.0} for s in tree.requests}
    assert nash_conv(tree, strategy) == pytest.approx(2 * config.regret(bids))
    assert config.regret(bids) > 0.1


@pytest.mark.parametrize("max_value", [3, 5, 7, 9])
def test_two_bidders_of_an_odd_number_of_values_bid_half_rounded_down(max_value: int) -> None:
    """By hand: with bids floor(v / 2), the bid b > 0 wins with probability 2 b / V, and (v - b) b is greatest at v / 2.
    The greatest value ties like all others if V is odd."""
    half = tuple(value // 2 for value in range(1, max_value + 1))
    assert half in auction(max_value=max_value).equilibria


def test_equilibria_come_near_the_continuous_one_as_values_become_finer() -> None:
    """Vickrey: n bidders of uniform values bid (n - 1) / n of them."""
    assert auction(players=4).equilibrium_bid(8) == pytest.approx(6.0)
    for players in (2, 3):
        config = auction(players=players, max_value=9)
        assert config.mean_distance_from_equilibrium_bid(config.equilibria[0]) < 0.5
    assert auction(players=3, max_value=7).equilibria == (), "no pure one: the best bid is undercut or overbid"
    assert set(auction(players=3, max_value=7).reference_players()) == {"truthful"}
    assert auction(max_value=50).equilibria == ()


def test_win_chance_is_that_of_independent_lots() -> None:
    config, rng = auction(players=3, max_value=4), random.Random(1)
    bids, wins = (0, 1, 1, 2), []
    for _ in range(20_000):
        others = [rng.choice(bids), rng.choice(bids)]
        wins.append((max(others) <= 1) / (1 + others.count(1)))
    assert config.win_probability(1, bids) == pytest.approx(fmean(wins), abs=0.02)


def test_the_highest_bid_wins_and_a_tie_is_divided() -> None:
    assert played(auction(), "7 3", 4, 2).rewards == {"player_0": 3.0, "player_1": 0.0}
    assert played(auction(), "7 3", 2, 2).rewards == {"player_0": 2.5, "player_1": 0.5}
    assert played(auction(players=3), "7 3 5", 0, 0, 0).rewards == pytest.approx(
        {"player_0": 7 / 3, "player_1": 1.0, "player_2": 5 / 3}
    )


def test_measures_tell_efficiency_revenue_and_distance_from_equilibrium() -> None:
    assert played(auction(), "7 3", 4, 2).episode_measures().measures == {
        "efficient": 1.0,
        "revenue": 4.0,
        "bid_error": 0.5,
    }
    assert played(auction(), "7 3", 2, 2).episode_measures().measures["efficient"] == 0.5
    assert played(auction(), "7 3", 9).episode_measures().measures == {
        "efficient": 0.0,
        "revenue": 0.0,
        "bid_error": 0.0,
    }


@pytest.mark.parametrize("bid", ["3", "7", "-1", "1.5", "two", "", "0 0"])
def test_a_bid_of_the_value_or_more_is_illegal_and_worse_than_any_other(bid: str) -> None:
    game = auction().build()
    reset_and_play(game, 0, {"values": "3 7"}, [bid])
    assert game.rewards == {"player_0": -1.0, "player_1": 0.0}


def test_a_bidder_is_told_its_own_value_alone() -> None:
    """Deals and bids of the others change nothing that a bidder is told."""
    for value in range(1, 8):
        seen = set()
        for other in range(1, 8):
            for bid in range(other):
                game = played(auction(), f"{other} {value}", bid)
                seen.add(repr((game.observe("player_1"), game.infos["player_1"])))
                first = played(auction(), f"{value} {other}")
                assert first.observe("player_0")["text"] == f"player_0 value {value}"
                assert first.infos["player_0"]["together"] == ("player_0", "player_1")
        assert len(seen) == 1


def test_deals_are_exported_while_the_tree_is_small() -> None:
    starts = auction().all_start_states() or ()
    assert len(starts) == 49
    assert sum(start.probability for start in starts) == pytest.approx(1)
    assert auction(players=3, max_value=10).all_start_states() is None
    tree = uniform_game_tree(auction(max_value=3))
    assert expected_returns(tree, uniform_strategy(tree))["player_0"] == pytest.approx(
        expected_returns(tree, uniform_strategy(tree))["player_1"]
    )


@pytest.mark.parametrize("deal", ["7", "0 3", "8 3", "7 3 1", 7, "7  3", "\u0667 3"], ids=repr)
def test_an_impossible_deal_is_named(deal: object) -> None:
    with pytest.raises(ValueError, match=r"first_price_auction: option values: .* choices: 2 numbers from 1 to 7"):
        auction().build().reset(0, {"values": deal})


@pytest.mark.parametrize("settings", [{"players": 1}, {"players": 7}, {"max_value": 1}], ids=str)
def test_impossible_settings_are_named(settings: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        auction(**settings)
