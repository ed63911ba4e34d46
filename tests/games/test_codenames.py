"""Codenames against a second implementation, what each player can know, clues that cheat, and the scripted players."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from marl.games.codenames import LEXICON, CodenamesConfig, CodenamesPlayer, is_allowed_clue
from marl.text.origins import origin_spans_of_text

SMALL = {"counts": (3, 2, 2, 1)}
WORDS = "shark moon apple rose coin drum sofa train"
KEY = "rrrbbnna"


def new_game(key: str = KEY, **settings: Any) -> Any:
    game = CodenamesConfig.model_validate(SMALL | settings).build()
    game.reset(0, {"words": WORDS, "key": key})
    return game


def play(game: Any, *moves: str) -> Any:
    for move in moves:
        game.step(move)
    return game


def referee(words: Sequence[str], key: str, moves: Sequence[str], teams: int, turns: int) -> tuple[str, Any]:
    """Return the agent to move after `moves` and its moves, or "" and the returns of red and blue: rules read anew."""
    colour = dict(zip(words, key, strict=True))
    side, found, clue_count, number, guessed = "r", set[str](), 0, None, 0
    for move in moves:
        over_turn = False
        if number is None:
            number, guessed, clue_count = int(move.split()[1]), 0, clue_count + 1
        elif move == "stop":
            over_turn = True
        else:
            found.add(move)
            guessed += 1
            left = {c: sum(colour[w] == c and w not in found for w in words) for c in "rb"}
            if colour[move] == "a":
                return "", (0.0, 0.0) if teams == 1 else ((-1.0, 1.0) if side == "r" else (1.0, -1.0))
            if left["r"] == 0:
                return "", (1.0, 1.0) if teams == 1 else (1.0, -1.0)
            if left["b"] == 0 and teams == 2:
                return "", (-1.0, 1.0)
            over_turn = colour[move] != side or (number > 0 and guessed == number + 1)
        if over_turn:
            number = None
            if teams == 1 and clue_count == turns:
                share = sum(colour[w] == "r" for w in found) / key.count("r")
                return "", (share, share)
            side = ({"r": "b", "b": "r"}[side]) if teams == 2 else "r"
    name = {"r": "red", "b": "blue"}[side]
    if number is None:
        topics = {topic for associations in LEXICON.values() for topic in associations}
        return f"{name}_master", {f"{topic} {count}" for topic in topics for count in (1, 2, 3, 4)}
    return f"{name}_guesser", {*words} - found | ({"stop"} if guessed else set())


@pytest.mark.parametrize(
    ("teams", "games"), [(1, 100), (2, 100), *(pytest.param(n, 1000, marks=pytest.mark.slow) for n in (1, 2))]
)
def test_random_games_agree_with_a_second_implementation(teams: int, games: int) -> None:
    game: Any = CodenamesConfig(teams=teams, counts=(4, 3, 3, 1), max_turns=5).build()  # type: ignore[arg-type]
    ends = set[Any]()
    for seed in range(games):
        rng, moves = random.Random(seed), list[str]()
        game.reset(seed)
        words, key = list(game.owner), game.key
        while True:
            mover, legal = referee(words, key, moves, teams, 5)
            assert any(game.terminations.values()) == (mover == "")
            if not mover:
                red, blue = legal
                assert game.rewards["red_master"] == game.rewards["red_guesser"] == pytest.approx(red)
                assert game.rewards.get("blue_guesser", blue) == pytest.approx(blue)
                ends.add((red, blue))
                break
            assert game.agent_selection == mover
            assert {*game.infos[mover]["legal"]} == legal
            moves.append(rng.choice(game.infos[mover]["legal"]))
            game.step(moves[-1])
    assert len(ends) >= 2


def test_a_turn_ends_after_one_guess_more_than_the_number_or_with_a_word_of_somebody_else() -> None:
    game = play(new_game(), "sea 1", "shark", "moon")
    assert game.agent_selection == "blue_master"
    game = play(new_game(), "sea 4", "drum")
    assert game.agent_selection == "blue_master"
    assert game.legal_actions("blue_guesser") == ("shark", "moon", "apple", "rose", "coin", "sofa", "train")
    # The other team's last word wins the game for it, and the assassin loses it.
    assert play(new_game(), "love 1", "rose", "sea 1", "coin").rewards["blue_master"] == 1.0
    assert play(new_game(), "sea 1", "train").rewards == {
        **{"red_master": -1.0, "red_guesser": -1.0},
        **{"blue_master": 1.0, "blue_guesser": 1.0},
    }


def test_a_guesser_must_guess_before_it_may_stop() -> None:
    game = play(new_game(), "sea 1")
    assert "stop" not in game.infos["red_guesser"]["legal"]
    assert "stop" in play(game, "shark").infos["red_guesser"]["legal"]


@pytest.mark.parametrize("other_key", ["rrrbbann", "rrbrabnn", "brrrnanb"])
def test_a_guesser_reads_nothing_that_depends_on_the_key(other_key: str) -> None:
    for moves in ((), ("sea 2",)):
        one, other = play(new_game(), *moves), play(new_game(other_key), *moves)
        for agent in ("red_guesser", "blue_guesser"):
            assert one.describe_observation(agent) == other.describe_observation(agent)
            assert one.information_state(agent) == other.information_state(agent)
        assert one.describe_observation("red_master") != other.describe_observation("red_master")


def test_after_a_guess_a_guesser_knows_this_word_and_no_other() -> None:
    # Both keys give shark to red and as many words to each side.
    one, other = play(new_game("rrrbbnna"), "sea 2", "shark"), play(new_game("rnabbrnr"), "sea 2", "shark")
    for agent in ("red_guesser", "blue_guesser"):
        assert one.describe_observation(agent) == other.describe_observation(agent)


def test_lines_lead_to_the_moves_that_made_them_and_texts_around_a_clue_are_not_heard() -> None:
    game = play(new_game(), "sea 2", "shark")
    spans = origin_spans_of_text(game.describe_observation("red_guesser"))
    assert [(span[2].source, span[2].kind) for span in spans] == [(0, "told"), (1, "self")]
    assert game.infos["red_guesser"]["hears"] == ("red_guesser",)


CHEATS = (
    *("shark 1", "sharks 1", "SHARK 1", "sh\u0430rk 1", "kr\u0430hs 1", "krahs 1", "har 1", "moonlight 1", "ap 1"),
    *("s-h-a-r-k 1", "s h a r k 1", "sea 2 shark", "sea shark 2", "sea two", "sea", "2", "sea 10", "sea -1", "sea 2!"),
    *(
        "\u043c\u043e\u0440\u0435 2",
        "\u6d77 2",
        "sea\u200b 2",
        '"sea" 2',
        "sea\n2",
        "",
        " ",
        "b" * 21 + " 1",
        "sea 2.5",
    ),
)
"""Texts that name words of the board, hide them, or say more than a word and a number."""


@pytest.mark.parametrize("text", CHEATS)
def test_clues_that_say_more_than_a_word_and_a_number_are_illegal(text: str) -> None:
    game = new_game(clues="text")
    assert not game.is_legal(text)
    game.step(text)
    assert game.rewards["red_guesser"] == game.rewards["red_master"] == -1.0
    assert game.rewards["blue_guesser"] == 1.0


@pytest.mark.parametrize("text", ["sea 2", "River 0", "zebra 9"])
def test_any_other_word_is_a_clue_and_case_tells_nothing(text: str) -> None:
    game = new_game(clues="text")
    assert game.is_legal(text)
    game.step(text)
    assert game.agent_selection == "red_guesser"
    assert f"red_master : {text.lower()}" in game.describe_observation("red_guesser")


def test_a_found_word_may_be_a_clue_again() -> None:
    assert not is_allowed_clue("shark", ["shark", "moon"])
    assert play(new_game(clues="text"), "sea 1", "shark", "stop").is_legal("shark 1")


def test_every_topic_of_the_list_is_an_allowed_clue() -> None:
    assert [topic for topic in CodenamesConfig().topics if not is_allowed_clue(topic, list(LEXICON))] == []


def test_scripted_players_find_more_of_their_words_than_random_ones() -> None:
    """The game has one team, so that the reward is the share of its words."""

    def mean_reward(scripted: Sequence[str]) -> float:
        total, player = 0.0, CodenamesPlayer()
        for seed in range(12):
            game: Any = CodenamesConfig(teams=1).build()
            game.reset(seed)
            rng = random.Random(seed)
            while not any(game.terminations.values()):
                agent = game.agent_selection
                info = game.infos[agent]
                chances = dict.fromkeys(info["legal"], 1.0)
                if agent in scripted:
                    chances = player.move_probabilities(info["state"], info["legal"])
                    assert sum(chances.values()) == pytest.approx(1)
                game.step(rng.choices(list(chances), list(chances.values()))[0])
            total += game.rewards["red_master"]
        return total / 12

    both, nobody = mean_reward(("red_master", "red_guesser")), mean_reward(())
    assert both > 0.5 > nobody
    assert both > mean_reward(("red_master",))
    assert both > mean_reward(("red_guesser",))


def test_measures_tell_what_each_part_did() -> None:
    game = play(new_game(), "sea 1", "shark", "drum", "tool 2", "sofa", "night 2", "moon", "apple")
    measures = game.episode_measures().measures
    assert measures == {
        **{"win_red": 1.0, "found_red": 1.0, "win_blue": 0.0, "found_blue": 0.0, "assassin": 0.0},
        **{"clues": 3.0, "clue_number": pytest.approx(5 / 3), "accuracy": 3 / 5},
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"counts": (0, 1, 1, 1)}, "counts: .*at least 1 word for each team"),
        ({"counts": (30, 8, 7, 1)}, "46 words are on the board, but there are 36"),
        ({"words": {"Shark": ()}, "counts": (1, 0, 0, 0), "teams": 1}, "words: 'Shark'; choices: small Latin letters"),
    ],
)
def test_impossible_boards_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CodenamesConfig.model_validate(settings)


def test_an_illegal_clue_in_free_text_costs_and_is_replaced_by_an_example() -> None:
    game = new_game(teams=1, clues="text", illegal={"then": "penalty", "penalty": 2})
    game.step("I would say: river 2")
    assert game.rewards == {"red_master": -2, "red_guesser": -2}
    assert game.agent_selection == "red_guesser"
    assert game.clue[0] in CodenamesConfig().topics
