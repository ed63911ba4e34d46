"""Hold'em with small decks against OpenSpiel, and its hands against known ones."""

from __future__ import annotations

import random
import re
from itertools import combinations
from typing import Any

import pyspiel
import pytest
from pettingzoo.test import api_test, seed_test
from pydantic import ValidationError

from marl.games.base import reset_and_play
from marl.games.holdem import AGENTS, Holdem, HoldemConfig
from marl.games.holdem_hands import equity, make_deck, rank_hand

DEAL = "7c 6d 5h 5s 7d 5d 2c"
SETTINGS = [{}, {"streets": 4, "max_raises": 4}, {"ranks": 5, "suits": 2}, {"ranks": 13, "streets": 3, "max_raises": 3}]


def holdem(**settings: object) -> HoldemConfig:
    return HoldemConfig.model_validate(settings)


def played(*moves: str, cards: str = DEAL, **settings: object) -> Holdem:
    game = holdem(**settings).build()
    reset_and_play(game, 0, {"cards": cards}, moves)
    return game


def openspiel(config: HoldemConfig) -> pyspiel.Game:
    count = config.streets
    parameters = {
        **{"betting": "limit", "numPlayers": 2, "numRounds": count, "blind": "1 2", "bettingAbstraction": "fcpa"},
        **{"raiseSize": "2 2 4 4"[: 2 * count - 1], "firstPlayer": "1 2 2 2"[: 2 * count - 1]},
        **{"maxRaises": " ".join([str(config.max_raises)] * count), "numBoardCards": "0 3 1 1"[: 2 * count - 1]},
        **{"numSuits": config.suits, "numRanks": config.ranks, "numHoleCards": 2},
    }
    return pyspiel.load_game("universal_poker", parameters)


def expect_agreement(config: HoldemConfig, seeds: range) -> None:
    """Compare one random hand per seed with OpenSpiel: players, legal moves, and chips."""
    game, root, rng = config.build(), openspiel(config).new_initial_state(), random.Random(0)
    numbers = {"fold": 0, "check": 1, "call": 1, "bet": 2, "raise": 2}
    for seed in seeds:
        game.reset(seed)
        theirs, cards = root.clone(), iter(game.start_state_key().split(" "))
        while True:
            while theirs.is_chance_node():
                card = next(cards)
                theirs.apply_action(next(a for a in theirs.legal_actions() if card in theirs.action_to_string(a)))
            assert theirs.is_terminal() == any(game.terminations.values())
            if theirs.is_terminal():
                assert theirs.returns() == [game.rewards[agent] for agent in AGENTS]
                break
            agent = game.agent_selection
            assert agent == AGENTS[theirs.current_player()]
            legal = game.infos[agent]["legal"] or ()
            assert [numbers[move] for move in legal] == theirs.legal_actions()
            # Folds are rarer than in uniform play, so that hands are shown.
            move = rng.choices(legal, [0.3 if option == "fold" else 1.0 for option in legal])[0]
            theirs.apply_action(numbers[move])
            game.step(move)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_random_hands_agree_with_openspiel(settings: dict) -> None:
    expect_agreement(holdem(**settings), range(150))


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_2_000_random_hands_of_each_deck_agree_with_openspiel(settings: dict) -> None:
    expect_agreement(holdem(**settings), range(1000, 3000))


def test_the_hands_of_a_small_deck_are_as_many_as_combinatorics_says() -> None:
    small = [rank_hand(cards)[0] for cards in combinations(make_deck(5, 4), 5)]
    # 20 cards of 5 ranks: 4 straight flushes of the one straight, 4^5 - 4 straights, 5 * 16 fours of a kind.
    assert [small.count(category) for category in (8, 7, 6, 5, 4)] == [4, 80, 5 * 4 * 4 * 6, 0, 4**5 - 4]
    assert len(small) == 15_504


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("2c 3c 4c 5c 6c", "As Ad Ah Ac Kc"),
        ("As Ad Ah Ac Kc", "Ks Kd Kh Qc Qd"),
        ("2s 2d 2h 3c 3d", "Ac Jc 9c 7c 5c"),
        ("Ac Jc 9c 7c 5c", "Ts Js Qs Ks Ad"),
        ("2s 3d 4h 5c 6d", "As 2d 3h 4c 5d"),
        ("As 2d 3h 4c 5d", "Ks Kd Kh Qc 2d"),
        ("Ks Kd 3h 3c Ad", "Ks Kd 3h 3c Qd"),
        ("As Kd Qh Jc 9d", "As Kd Qh Jc 8d"),
        ("2s 2d Ah 3c 4d", "As Kd Qh Jc 9d"),
        ("3s 3d 3h 2c 4d", "As Ad Kh Kc Qd"),
    ],
)
def test_the_order_of_hands_is_the_usual_one(better: str, worse: str) -> None:
    assert rank_hand(tuple(better.split(" "))) > rank_hand(tuple(worse.split(" ")))


def test_chips_follow_the_betting() -> None:
    assert played("fold").rewards == {"player_0": -1.0, "player_1": 1.0}
    assert played("raise", "fold").rewards == {"player_0": 2.0, "player_1": -2.0}
    # player_0 has 7 7 5 with 6, player_1 three fives.
    shown = played("call", "check", "check", "bet", "raise", "call")
    assert shown.rewards == {"player_0": -6.0, "player_1": 6.0}
    assert shown.episode_measures().measures == {"showdown": 1.0, "pot": 12.0}
    assert played("call", "check", "bet", "fold").rewards == {"player_0": -2.0, "player_1": 2.0}
    tie = played("call", "check", "check", "check", cards="6c 7d 6d 7h 2c 3c 5s")
    assert set(tie.rewards.values()) == {0.0}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_largest_loss_is_less_than_an_illegal_move(settings: dict) -> None:
    config = holdem(**settings)
    game = config.build()
    game.reset(0)
    while not any(game.terminations.values()):
        legal = game.infos[game.agent_selection]["legal"] or ()
        game.step(next(move for move in ("raise", "bet", "call", "check") if move in legal))
    assert max(game.chips) == config.maximum_loss == game.penalty - 1
    for move in ("bet", "check", "", "Fold", "all in"):
        game.reset(0)
        game.step(move)
        assert game.rewards == {"player_0": -game.penalty, "player_1": game.penalty}


def test_a_player_reads_its_cards_the_board_so_far_and_the_betting() -> None:
    game = played()
    assert game.observe("player_0")["text"] == "hand 7c 6d board none preflop none"
    assert game.infos["player_0"]["legal"] == ("fold", "call", "raise")
    game.step("call")
    assert game.infos["player_1"]["legal"] == ("check", "raise")
    game.step("check")
    assert game.observe("player_1")["text"] == "hand 5s 5h board 7d 5d 2c preflop call check flop none"
    assert game.infos["player_1"]["legal"] == ("check", "bet")


def test_nobody_reads_the_cards_of_the_other_or_of_the_future() -> None:
    config, rng, compared = holdem(streets=3), random.Random(0), 0
    one, other = config.build(), config.build()
    for seed in range(150):
        cards = rng.sample(one.deck, 10)
        one.reset(seed, {"cards": " ".join(cards[:8])})
        reader = rng.randrange(2)
        hidden = 2 * (1 - reader)
        changed = cards[:8]
        changed[hidden : hidden + 2] = cards[8:]
        changed[7] = cards[hidden]
        other.reset(seed, {"cards": " ".join(changed)})
        while len(one.rounds) < 3 and not any(one.terminations.values()):
            agent = AGENTS[reader]
            assert repr(one.observe(agent)) == repr(other.observe(agent))
            assert one.infos[agent] == other.infos[agent]
            compared += 1
            move = rng.choice(one.infos[one.agent_selection]["legal"] or ())
            one.step(move)
            other.step(move)
    assert compared > 300


def test_equity_is_that_of_enumeration_and_the_scripted_player_uses_it() -> None:
    deck, hand, board = make_deck(6, 4), ("7c", "7d"), ("7h", "7s", "2c")
    assert equity(hand, board, deck, 3) == 1.0
    assert equity(("3c", "2d"), (), deck, 3) < 0.5 < equity(hand, (), deck, 3)
    won = []
    for other in combinations([card for card in deck if card not in ("6c", "5d", *board)], 2):
        mine, theirs = rank_hand(("6c", "5d", *board)), rank_hand((*other, *board))
        won.append((mine > theirs) + 0.5 * (mine == theirs))
    assert equity(("6c", "5d"), board, deck, 3) == pytest.approx(sum(won) / len(won))
    player: Any = holdem().reference_players()["equity"]
    assert player.move_probabilities("hand 7c 7d board none preflop none", ("fold", "call", "raise")) == {"raise": 1.0}
    assert player.move_probabilities("hand 3c 2d board 7c 7d 6h preflop call check flop bet", ("fold", "call")) == {
        "fold": 1.0
    }


def test_the_scripted_player_wins_against_random_play() -> None:
    config, rng, chips = holdem(), random.Random(0), 0.0
    player: Any = config.reference_players()["equity"]
    game = config.build()
    for seed in range(120):
        game.reset(seed)
        me = AGENTS[seed % 2]
        while not any(game.terminations.values()):
            agent, legal = game.agent_selection, game.infos[game.agent_selection]["legal"] or ()
            move = rng.choice(legal)
            if agent == me:
                [move] = player.move_probabilities(str(game.infos[agent]["state"]), legal)
            game.step(move)
        chips += game.rewards[me]
    assert chips / 120 > 0.5  # the standard error is .3


def test_a_drawing_hides_the_other_hand() -> None:
    picture = holdem().render_state(str(played("call", "check").infos["player_1"]["state"]))
    assert picture is not None
    assert picture.rows == (("5s", "5h", "?", "?"), ("7d", "5d", "2c"))
    assert picture.caption == "preflop call check flop none"
    assert holdem().render_state("nonsense") is None


@pytest.mark.parametrize("cards", ["7c", f"{DEAL} 3c", "7c 7c 5h 5s 7d 5d 2c", "Ac 6d 5h 5s 7d 5d 2c", 7], ids=str)
def test_an_impossible_deal_is_named(cards: object) -> None:
    with pytest.raises(ValueError, match=re.escape("choices: 7 different cards of 2c to 7s")):
        holdem().build().reset(0, {"cards": cards})


@pytest.mark.parametrize("settings", [{"ranks": 4}, {"suits": 5}, {"streets": 1}, {"max_raises": 0}], ids=str)
def test_impossible_settings_are_named(settings: dict) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        holdem(**settings)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("settings", [*SETTINGS, {"illegal": {"retry": 1, "then": "penalty"}}], ids=str)
def test_it_is_an_ordinary_pettingzoo_environment(settings: dict) -> None:
    config = holdem(**settings)
    api_test(config.build(), num_cycles=40)
    seed_test(config.build, num_cycles=20)
