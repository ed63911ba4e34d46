"""Hanabi with small decks against OpenSpiel: moves, points, tokens, and what each player knows of its cards."""

from __future__ import annotations

import random
import re
from typing import Any

import pyspiel
import pytest
from pettingzoo.test import api_test, seed_test
from pydantic import ValidationError

from marl.core.types import Deal
from marl.engines.scripted import Random
from marl.games.hanabi import Hanabi, HanabiConfig
from tests.support.small_games import make_deal, make_simulator

SETTINGS = [
    {},
    {"players": 3, "lives": 2},
    {"colours": 1, "ranks": 5, "hints": 1, "lives": 3},
    {"colours": 5, "ranks": 5, "hand": 5, "hints": 8, "lives": 3},
    {"players": 3, "colours": 2, "ranks": 4, "hand": 3, "hints": 2, "lives": 3},
]
DECK = "R1 Y2 R2 Y1 R1 R3 Y1 Y3 R1 Y1 R2 Y2"


def hanabi(**settings: object) -> HanabiConfig:
    return HanabiConfig.model_validate(settings)


def played(*moves: str, deck: str = DECK, **settings: object) -> Hanabi:
    game = hanabi(**settings).build()
    game.reset(0, {"deck": deck})
    for move in moves:
        game.step(move)
    return game


def over(game: Hanabi) -> bool:
    return any(game.terminations.values())


def openspiel(config: HanabiConfig) -> pyspiel.Game:
    sizes = {"players": config.players, "colors": config.colours, "ranks": config.ranks, "hand_size": config.hand}
    return pyspiel.load_game(
        "hanabi", sizes | {"max_information_tokens": config.hints, "max_life_tokens": config.lives}
    )


def our_move(theirs: str, player: int, players: int) -> str:
    """Return the text of OpenSpiel's move `theirs` of a player in our words."""
    verb, *words = theirs.strip("()").split(" ")
    if verb == "Reveal":
        return f"hint player_{(player + int(words[1])) % players} {words[3]}"
    return f"{verb.lower()} {int(words[0]) + 1}"


def expect_agreement(config: HanabiConfig, seeds: range) -> None:
    """Compare one random game per seed with OpenSpiel, after every move."""
    game, root, rng = config.build(), openspiel(config).new_initial_state(), random.Random(0)
    for seed in seeds:
        game.reset(seed)
        theirs, cards = root.clone(), iter(game.start_state_key().split(" "))
        while True:
            while theirs.is_chance_node():
                card = next(cards)
                theirs.apply_action(next(a for a in theirs.legal_actions() if card in theirs.action_to_string(a)))
            assert theirs.is_terminal() == over(game)
            if theirs.is_terminal():
                assert theirs.returns() == [float(game.score)] * len(game.seats)
                break
            text, player = str(theirs), theirs.current_player()
            assert game.agent_selection == f"player_{player}"
            assert f"Life tokens: {game.lives}\nInfo tokens: {game.hints}\n" in text
            assert f"Deck size: {len(game.deck)}" in text
            assert re.findall(r"([A-Z]\d) \|\| ..\|([A-Z]+)(\d+)", text) == [
                (card, *facts)
                for agent in game.seats
                for card, facts in zip(game.hands[agent], game.known[agent], strict=True)
            ]
            actions = {our_move(theirs.action_to_string(a), player, config.players): a for a in theirs.legal_actions()}
            legal = game.infos[game.agent_selection]["legal"] or ()
            assert set(legal) == set(actions)
            # Plays that do not fit are rarer than in uniform play, so that games last.
            move = rng.choices(legal, [0.4 if option.startswith("play") else 1.0 for option in legal])[0]
            theirs.apply_action(actions[move])
            game.step(move)
            assert theirs.rewards() == [game.rewards[agent] for agent in game.seats]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_random_games_agree_with_openspiel(settings: dict) -> None:
    expect_agreement(hanabi(**settings), range(40))


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_2_000_random_games_agree_with_openspiel(settings: dict) -> None:
    expect_agreement(hanabi(**settings), range(1000, 1400))


def test_a_player_reads_the_table_the_other_hand_and_the_facts_of_its_own_cards() -> None:
    game = played("hint player_1 2", "play 2")
    assert game.observe("player_0")["text"].split("\n") == [
        "lives 1 . hints 2 . deck 7 . fireworks R0 Y1 . discards none . player_1 R2 RY_2 R1 RY_123 . you RY_123 RY_123",
        "player_1 : play 2 Y1 fits",
        "now player_0",
    ]
    assert "hint player_1 2" in game.infos["player_0"]["state"]
    game = played("hint player_1 2")
    assert game.observe("player_1")["text"].split("\n")[0].endswith("player_0 R1 RY_123 Y2 RY_123 . you RY_2 RY_13")


def test_points_are_paid_when_a_card_fits_and_lost_with_the_last_life() -> None:
    game = played("play 1", "play 1")
    assert not over(game)
    assert game.rewards == {"player_0": 1.0, "player_1": 1.0}
    game.step("play 2")
    assert over(game)
    assert game.rewards == {"player_0": -2.0, "player_1": -2.0}
    assert game.episode_measures().measures == {"score": 0.0, "score_share": 0.0, "lives": 0.0}
    kept = played("play 1", "play 1", "play 2", keeps_points=True)
    assert over(kept)
    assert kept.rewards == {"player_0": 0.0, "player_1": 0.0}
    assert kept.episode_measures().measures["score"] == 2.0
    assert played("play 3").rewards == {"player_0": -1.0, "player_1": -1.0}


def test_nobody_reads_its_own_cards_or_the_deck() -> None:
    """Deals with other cards in the reader's hand and in the deck, in which the same is said about them."""
    config, rng, compared = hanabi(players=3, lives=3, hand=3, ranks=4), random.Random(0), 0
    one, other = config.build(), config.build()
    for seed in range(200):
        one.reset(seed)
        cards = one.start_state_key().split(" ")
        # The cards of player_0, and those of the deck, change places.
        hidden = [*range(3), *range(9, len(cards))]
        mixed = rng.sample(hidden, len(hidden))
        changed = list(cards)
        for here, there in zip(hidden, mixed, strict=True):
            changed[here] = cards[there]
        other.reset(seed, {"deck": " ".join(changed)})
        for _ in range(12):
            if over(one) or over(other) or one.known["player_0"] != other.known["player_0"]:
                break
            assert repr(one.observe("player_0")) == repr(other.observe("player_0"))
            assert one.infos["player_0"] == other.infos["player_0"]
            compared += 1
            # Hints, about which the game tells nothing but the hinted cards.
            moves = [move for move in one.infos[one.agent_selection]["legal"] or () if move.startswith("hint")]
            common = [move for move in moves if move in (other.infos[other.agent_selection]["legal"] or ())]
            if not common:
                break
            move = rng.choice(common)
            one.step(move)
            other.step(move)
    assert compared > 300


def test_moves_of_others_are_edges_although_no_texts_are_heard() -> None:
    config = hanabi(lives=3)
    simulator = make_simulator(config, Random().build(None))
    deals: list[Deal] = [make_deal(f"e{seed}", config, seed) for seed in range(3)]
    for trajectory in simulator.play(deals):
        for number, turn in enumerate(trajectory.turns):
            assert number == 0 or trajectory.graph.has_edge(trajectory.turns[number - 1].id, turn.id)


def test_the_scripted_player_scores_far_more_than_random_play() -> None:
    config, rng = hanabi(), random.Random(0)
    player: Any = config.reference_players()["hints"]
    game = config.build()
    scores = {"random": 0.0, "hints": 0.0}
    for name in scores:
        for seed in range(60):
            game.reset(seed)
            while not over(game):
                info = game.infos[game.agent_selection]
                legal = info["legal"] or ()
                [move] = (
                    player.move_probabilities(str(info["state"]), legal) if name == "hints" else [rng.choice(legal)]
                )
                game.step(move)
            scores[name] += game.score / 60
    assert scores["random"] < 0.5
    assert scores["hints"] > 3.0
    assert config.max_score == 6


def test_a_drawing_hides_the_own_cards() -> None:
    picture = hanabi().render_state(str(played("hint player_1 2").infos["player_1"]["state"]))
    assert picture is not None
    assert picture.rows == (("R0", "Y0"), ("R1", "Y2"), ("RY_2", "RY_13"))


@pytest.mark.parametrize("deck", ["R1", DECK.replace("Y3", "Y2"), 5], ids=str)
def test_an_impossible_deck_is_named(deck: object) -> None:
    with pytest.raises(ValueError, match=r"hanabi: option deck: .* choices: 'R1 R1 R1 R2 R2 R3 Y1"):
        hanabi().build().reset(0, {"deck": deck})


@pytest.mark.parametrize(
    "settings", [{"players": 4}, {"colours": 6}, {"ranks": 1}, {"colours": 1, "ranks": 2, "hand": 3}], ids=str
)
def test_impossible_settings_are_named(settings: dict) -> None:
    with pytest.raises(ValidationError, match=[*settings][-1]):
        hanabi(**settings)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("settings", [*SETTINGS, {"illegal": {"retry": 1, "then": "penalty"}}], ids=str)
def test_it_is_an_ordinary_pettingzoo_environment(settings: dict) -> None:
    config = hanabi(**settings)
    api_test(config.build(), num_cycles=40)
    seed_test(config.build, num_cycles=20)
