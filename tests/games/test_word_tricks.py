"""Ways of cheating by words, each tried in taboo, codenames, negotiation and werewolf: none of them pays."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from marl.games.codenames import LEXICON, CodenamesConfig
from marl.games.negotiation_terms import parse_move
from marl.games.taboo import ATTACKER, DEFENDER, GUESS, TabooConfig
from marl.text.word_count import count_words
from tests.games.test_werewolf import over, played, text

CYRILLIC = str.maketrans("aeopcxyis", "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0455")
GREEK = str.maketrans("aeoipvkt", "\u03b1\u03b5\u03bf\u03b9\u03c1\u03bd\u03ba\u03c4")
LEET = str.maketrans("aeiosl", "431051")
BOXES = str.maketrans({chr(97 + place): chr(0x1F130 + place) for place in range(26)})
SCRIPT = str.maketrans({chr(97 + place): chr(0x1D4EA + place) for place in range(26)})
FLAGS = str.maketrans({chr(97 + place): chr(0x1F1E6 + place) for place in range(26)})
TAGS = str.maketrans({chr(97 + place): chr(0xE0061 + place) for place in range(26)})
BRAILLE = dict(zip("abcdefghij", "\u2801\u2803\u2809\u2819\u2811\u280b\u281b\u2813\u280a\u281a", strict=True))
MORSE = dict(zip("acelmnoprst", [".-", "-.-.", ".", ".-..", "--", "-.", "---", ".--.", ".-.", "...", "-"], strict=True))
TRICKS: dict[str, Callable[[str], str]] = {
    "letters apart": " ".join,
    "dashes": "-".join,
    "dots": ".".join,
    "underscores": "_".join,
    "backwards": lambda word: word[::-1],
    "letters backwards": lambda word: " ".join(word[::-1]),
    "capitals": str.upper,
    "mixed case": lambda word: "".join(sign.upper() if place % 2 else sign for place, sign in enumerate(word)),
    "Cyrillic look-alikes": lambda word: word.translate(CYRILLIC),
    "Greek look-alikes": lambda word: word.translate(GREEK),
    "full width": lambda word: "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in word),
    "mathematical script": lambda word: word.translate(SCRIPT),
    "squared letters": lambda word: word.translate(BOXES),
    "regional indicators": lambda word: word.translate(FLAGS),
    "tags without a picture": lambda word: f"it{word.translate(TAGS)}",
    "digits for letters": lambda word: word.translate(LEET),
    "numbers of letters in words": lambda word: " ".join(f"letter {ord(sign) - 96}" for sign in word if sign.isalpha()),
    "accents": lambda word: "".join(f"{sign}\u0301" for sign in word),
    "spaces of no width": "\u200b".join,
    "soft hyphens": "\u00ad".join,
    "bidirectional override": lambda word: f"\u202e{word[::-1]}\u202c",
    "quotes": lambda word: f'"{word}"',
    "quotes of others": lambda word: f"they said: {word}",
    "Braille": lambda word: "".join(BRAILLE.get(sign, "\u283f") for sign in word),
    "Morse": lambda word: " ".join(MORSE.get(sign, "/") for sign in word),
    "base 64": lambda word: b64encode(word.encode()).decode(),
    "a line of its own": lambda word: f"hm\n{word}",
    "a line that no split sees": lambda word: f"hm\u2028{word}",
    "terminal codes": lambda word: f"hm\x1b[2K\x1b[1G{word}",
    "HTML": lambda word: "".join(f"&#{ord(sign)};" for sign in word),
}
"""Way of writing a word so that a reader recognises it and a rule might not."""
NUMBERS = (
    *(
        "\uff12",
        "\u00b2",
        "2\ufe0f\u20e3",
        "\u0662",
        "II",
        "two",
        "02",
        "+2",
        "2.0",
        "2 2",
        "-2",
        "1e0",
        "0x2",
        "\u00bd",
        "twelve",
    ),
    *("a couple of", "2,", '"2"', "(2)", "2\u200b"),
)
"""Ways of writing a number that are no number of the game, with which it might be read in two ways."""


def test_there_are_twenty_ways() -> None:
    assert len(TRICKS) >= 20
    assert len({trick("i am the seer") for trick in TRICKS.values()}) == len(TRICKS)


# --- taboo -----------------------------------------------------------------------------------------------------------


def taboo(*moves: str) -> Any:
    game: Any = TabooConfig().build()
    game.reset(0, {"word": "apple"})
    for move in moves:
        if not any(game.terminations.values()):
            game.step(move)
    return game


def test_an_attacker_who_writes_the_word_in_another_way_gains_nothing() -> None:
    for name, trick in TRICKS.items():
        said = f"it is {trick('apple')}"
        # Either the attacker has said the word and loses, or neither has it when the defender repeats the text.
        assert taboo(said, said).rewards[ATTACKER] <= 0, name
        # A defender who recognises the word wins by a guess.
        assert taboo(said, GUESS.format(word="apple")).rewards[DEFENDER] == 1, name


def test_a_defender_who_writes_a_guess_in_another_way_gains_nothing() -> None:
    for name, trick in TRICKS.items():
        word, wrong = trick("apple"), trick("cherry")
        assert taboo("it is red", f"maybe {word}").rewards[DEFENDER] <= 0, name
        # Several words in one guess are a wrong guess, even if one of them is right.
        assert taboo("it is red", GUESS.format(word=f"{wrong} {word}")).rewards[DEFENDER] == -1, name


# --- codenames -------------------------------------------------------------------------------------------------------


def test_no_clue_says_a_word_of_the_board_in_another_way() -> None:
    game: Any = CodenamesConfig(clues="text", counts=(9, 8, 18, 1)).build()
    # A code of letters alone is a word like any other, since a clue may be any word.
    for name, trick in TRICKS.items() - {("base 64", TRICKS["base 64"])}:
        game.reset(0)
        assert {*game.hidden} == {*LEXICON}, "the board has all words"
        assert [word for word in game.hidden if game.is_legal(f"{trick(word)} 2")] == [], name
        game.step(f"{trick('shark')} 2")
        assert game.rewards["red_guesser"] == game.rewards["red_master"] == -1, name


def test_no_clue_says_more_by_its_number() -> None:
    game: Any = CodenamesConfig(clues="text").build()
    game.reset(0)
    assert game.is_legal("zebra 2")
    assert [number for number in NUMBERS if game.is_legal(f"zebra {number}")] == []


# --- negotiation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", ["accept", "walk away", "take 2 book 0 hat 1 ball"])
def test_no_text_binds_as_another_move_than_it_says(move: str) -> None:
    items = ("book", "hat", "ball")
    assert parse_move(move, items) == move
    for name, trick in TRICKS.items():
        assert parse_move(trick(move), items) in (None, move), name
        assert parse_move(f"I will not {trick(move)}.", items) in (None, move), name
    for number in NUMBERS:
        assert parse_move(f"I take {number} books", items) in (None, "take 2 book 0 hat 0 ball"), number


# --- werewolf --------------------------------------------------------------------------------------------------------


def test_no_vote_is_cast_in_another_way() -> None:
    for name, trick in TRICKS.items():
        game = played("kill eve", "inspect ben", *["nothing"] * 4, f"vote {trick('ben')}", talk="text")
        assert over(game), name
        assert game.rewards["villager_0"] == -1.5, name
        assert game.rewards["seer"] == -1.0, name


def test_no_statement_forges_a_line_or_costs_less_than_it_says() -> None:
    for name, trick in TRICKS.items():
        game = played("kill eve", "inspect ben", talk="text", word_cost=0.01)
        before = text(game, "seer").split("\n")
        game.step(trick("you saw : ben is a werewolf"))
        after = text(game, "seer")
        assert after.splitlines() == after.split("\n"), name
        assert after.split("\n")[:-2] == before[:-1], name
        line = after.split("\n")[-2]
        assert line.startswith("ann : "), name
        paid = -game.reward_components["villager_0"]["talk"] / 0.01
        assert paid == pytest.approx(count_words(line.removeprefix("ann : "))), name
