"""Guess who: its rules, what the players know, and the entropy questioner against exact enumeration."""

from __future__ import annotations

import random
from functools import cache
from itertools import product

import pytest

from marl.evaluation.game_tree import best_response_return, build_game_tree, expected_returns
from marl.games.base import reset_and_play
from marl.games.guess_who import (
    CharacterTable,
    GuessWho,
    GuessWhoConfig,
    InformationGainPlayer,
    information_gain,
    moves_with_uncertain_answer,
)
from tests.support.enumerated_games import CASTING
from tests.support.small_games import PAIR

SQUARE: CharacterTable = {
    "ann": {"hair": "red", "hat": "cap"},
    "ben": {"hair": "red", "hat": "hood"},
    "cleo": {"hair": "black", "hat": "cap"},
    "dan": {"hair": "black", "hat": "hood"},
}
TRIO: CharacterTable = {"ann": {"hair": "red"}, "ben": {"hair": "black"}, "cleo": {"hair": "blond"}}
CUBE = {
    name: dict(zip("xyz", look, strict=True)) for name, look in zip("abcdefgh", product("01", repeat=3), strict=True)
}
LOPSIDED = {
    name: {"shade": str(min(i, 2)), **{f"is{j}": str(int(i == j)) for j in range(3, 6)}}
    for i, name in enumerate("abcdef")
}
"""No question halves the characters."""


def guess_who(**settings: object) -> GuessWhoConfig:
    return GuessWhoConfig.model_validate(settings)


def played(*moves: str, secrets: str = "ann dan", table: CharacterTable = SQUARE) -> GuessWho:
    game = guess_who(table=table).build()
    game.reset(0, {"secrets": secrets})
    for move in moves:
        game.step(move)
    return game


# --- rules -----------------------------------------------------------------------------------------------------------


def test_questions_are_answered_truthfully_and_heard_by_both() -> None:
    game = played("hair", "hat", "guess cleo")
    assert game.answers == ("hair black", "hat cap", "guess cleo no")
    assert game.observe("player_0")["text"] == "you are ann . they may be dan . you may be ann cleo"
    assert game.observe("player_1")["text"] == "you are dan . they may be ann cleo . you may be dan"
    assert game.infos["player_1"]["state"] == "dan / ann cleo / hair black, hat cap, guess cleo no"


def test_the_first_right_guess_wins() -> None:
    game = played("hair", "guess ann")
    assert game.rewards == {"player_0": -1.0, "player_1": 1.0}
    assert game.episode_measures().measures == {"turns": 2.0}


def test_what_tells_nothing_new_is_no_legal_move() -> None:
    game = played()
    assert game.infos["player_0"]["legal"] == ("hair", "hat", "guess ann", "guess ben", "guess cleo", "guess dan")
    game.step("hair")
    game.step("hat")
    assert game.infos["player_0"]["legal"] == ("hat", "guess cleo", "guess dan")
    game.step("hat")
    game.step("hair")
    assert game.infos["player_0"]["legal"] == ("guess dan",)
    game.step("guess ann")
    assert game.rewards == {"player_0": -1.5, "player_1": 1.5}


def test_every_answer_is_true_and_every_turn_rules_somebody_out() -> None:
    config = guess_who(characters=24, attributes=6, seed=3)
    game, rng = config.build(), random.Random(0)
    for seed in range(100):
        game.reset(seed)
        before = {agent: set(config.character_table) for agent in PAIR}
        while not any(game.terminations.values()):
            agent = game.agent_selection
            me = PAIR.index(agent)
            game.step(rng.choice(game.infos[agent]["legal"] or ()))
            possible = set(game.possible[me])
            assert game.secrets[1 - me] in possible
            assert possible < before[agent] or any(game.terminations.values())
            before[agent] = possible


def test_nothing_that_an_agent_observes_tells_the_others_secret() -> None:
    """With another secret of the opponent and the same answers so far, all that an agent is told is the same."""
    config = guess_who(table=CUBE)
    one, other, rng, compared = config.build(), config.build(), random.Random(0), 0
    for mine, theirs, twin in product("abc", "abcdefgh", "abcdefgh"):
        one.reset(0, {"secrets": f"{mine} {theirs}"})
        other.reset(0, {"secrets": f"{mine} {twin}"})
        while not any(one.terminations.values()) and one.answers == other.answers:
            assert repr(one.observe("player_0")) == repr(other.observe("player_0"))
            assert one.infos["player_0"] == other.infos["player_0"]
            compared += theirs != twin
            move = rng.choice(one.infos[one.agent_selection]["legal"] or ())
            one.step(move)
            other.step(move)
    assert compared > 300


# --- tables ----------------------------------------------------------------------------------------------------------


def test_generated_tables_depend_on_their_seed_and_nobody_is_alike() -> None:
    tables = [guess_who(characters=12, seed=seed).character_table for seed in range(20)]
    assert guess_who(characters=12, seed=0).character_table == tables[0] != tables[1]
    for table in tables:
        assert len(table) == 12
        assert len({tuple(values.items()) for values in table.values()}) == 12


def test_the_rules_hold_the_table() -> None:
    game = played()
    assert "cleo: hair black, hat cap; dan: hair black, hat hood." in game.rules


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"characters": 13, "attributes": 1}, "characters: 13 cannot .* choices: up to 3, or more attributes"),
        ({"characters": 25}, "characters"),
        ({"attributes": 7}, "attributes"),
        ({"table": {"ann": {"hair": "red"}}}, "table"),
        ({"table": {"ann": {"hair": "red"}, "ben": {"hair": "red"}}}, "two characters are alike"),
        ({"table": {"ann": {"hair": "red"}, "ben": {"hat": "cap"}}}, r"'ben' has \['hat'\]; all must have the same"),
        ({"table": {"ann": {"hair": "red"}, "Ben B": {"hair": "black"}}}, "'Ben B' is no name"),
        ({"table": {"ann": {"guess": "1"}, "ben": {"guess": "2"}}}, "'guess' is no name"),
        ({"table": {"ann": {}, "ben": {}}}, "all must have the same"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        guess_who(**settings)


@pytest.mark.parametrize("secrets", ["ann", "ann zoe", "ann  dan", 5, ["ann", "dan"]])
def test_impossible_secrets_are_refused_with_the_choices(secrets: object) -> None:
    with pytest.raises(
        ValueError, match=r"option secrets: .* are no two characters; choices: .* of ann, ben, cleo, dan"
    ):
        guess_who(table=SQUARE).build().reset(0, {"secrets": secrets})


# --- the entropy questioner ------------------------------------------------------------------------------------------


def fewest_turns(table: CharacterTable) -> float:
    """The least expected number of turns up to the right guess, by exact enumeration of all that can be asked."""

    @cache
    def least(possible: frozenset[str]) -> float:
        guesses = (1 + (len(possible) - 1) / len(possible) * least(possible - {name}) for name in possible)
        if len(possible) == 1:
            return 1.0
        questions = (
            1 + sum(len(part) / len(possible) * least(part) for part in parts)
            for attribute in next(iter(table.values()))
            if len(parts := divided(table, attribute, possible)) > 1
        )
        return min([*guesses, *questions])

    return least(frozenset(table))


def divided(table: CharacterTable, attribute: str, possible: frozenset[str]) -> list[frozenset[str]]:
    by_value = {table[name][attribute] for name in possible}
    return [frozenset(name for name in possible if table[name][attribute] == value) for value in by_value]


def turns_of_the_questioner(table: CharacterTable) -> float:
    """Its expected number of turns up to the right guess, by exact enumeration in the game."""
    player = InformationGainPlayer(table=table)

    @cache
    def expected(possible: tuple[str, ...]) -> float:
        chances = player.move_probabilities(
            f"x / {' '.join(possible)} / ", moves_with_uncertain_answer(table, possible)
        )
        total = 1.0
        for move, chance in chances.items():
            for secret in possible if chance else ():
                rest = tuple(name for name in possible if same(table, move, name, secret))
                total += chance / len(possible) * (0.0 if move == f"guess {secret}" else expected(rest))
        return total

    return expected(tuple(table))


def same(table: CharacterTable, move: str, name: str, secret: str) -> bool:
    if move.startswith("guess "):
        return (move == f"guess {name}") == (move == f"guess {secret}")
    return table[name][move] == table[secret][move]


@pytest.mark.parametrize(
    ("table", "turns"),
    [(SQUARE, 2.5), (CUBE, 3.5), (guess_who(characters=8, attributes=4).character_table, None), (LOPSIDED, None)],
    ids=["square", "cube", "generated", "lopsided"],
)
def test_the_questioner_needs_as_few_turns_as_any_on_small_tables(table: CharacterTable, turns: float | None) -> None:
    """On the square and the cube every question halves, and the last two are told apart by guessing."""
    least = fewest_turns(table)
    assert turns is None or least == pytest.approx(turns)
    assert turns_of_the_questioner(table) == pytest.approx(least)


def test_the_questioner_against_itself_is_worth_what_counting_says() -> None:
    """Three characters of three hair colours: both ask, and then the first to move knows the answer first.

    So the second does better to guess at once, right in one of three games: it is behind, and a bold guess pays (Nica,
    arXiv 1509.03327). The questioner asks as few questions as any, and does not look at the race.
    """
    game, player = guess_who(table=TRIO), InformationGainPlayer(table=TRIO)
    tree = build_game_tree(game, CASTING, dict.fromkeys(PAIR, "player"))
    strategy = {
        situation: player.move_probabilities(situation.state, tuple(request.options or ()))
        for situation, request in tree.requests.items()
    }
    assert expected_returns(tree, strategy) == pytest.approx({"player_0": 1.0, "player_1": -1.0})
    assert best_response_return(tree, strategy, "player_0") == pytest.approx(1.0)
    assert best_response_return(tree, strategy, "player_1") == pytest.approx(-1 / 3)


def test_entropy_is_that_of_the_answers() -> None:
    assert information_gain(SQUARE, "hair", tuple(SQUARE)) == pytest.approx(1.0)
    assert information_gain(SQUARE, "guess ann", tuple(SQUARE)) == pytest.approx(0.811278)
    assert information_gain(LOPSIDED, "shade", tuple(LOPSIDED)) == pytest.approx(1.251629)
    assert guess_who(table=SQUARE).reference_players() == {"entropy": InformationGainPlayer(table=SQUARE)}


# --- PettingZoo, seeds -----------------------------------------------------------------------------------------------


def test_guess_who_is_a_function_of_seed_and_actions() -> None:
    one, other = guess_who().build(), guess_who().build()
    for seed in range(20):
        one.reset(seed)
        rng, moves = random.Random(seed), []
        while not any(one.terminations.values()):
            moves.append(rng.choice(one.infos[one.agent_selection]["legal"] or ()))
            one.step(moves[-1])
        reset_and_play(other, seed, None, moves)
        assert (one.answers, one.possible, one.rewards) == (other.answers, other.possible, other.rewards)


def test_large_tables_export_no_deals() -> None:
    assert guess_who().all_start_states() is None
    assert len(guess_who(table=TRIO).all_start_states() or ()) == 9
