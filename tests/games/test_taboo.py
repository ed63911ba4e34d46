"""Taboo: its rules, what the defender may know, and play from seeds."""

import random
from pathlib import Path

import pytest

from marl.core.types import Deal, Request
from marl.engines.scripted import Random
from marl.games.base import reset_and_play
from marl.games.taboo import ATTACKER, DEFENDER, GUESS, LEXICON, SEATS, TabooConfig, TabooGame
from marl.protocols import GameConfig
from marl.roles.answering import PlayerRole
from tests.support.small_games import FunctionEngine, make_simulator

APPLE = {"word": "apple"}


def taboo(**settings: object) -> TabooConfig:
    return TabooConfig.model_validate(settings)


def played(*moves: str, settings: TabooConfig | None = None, word: str = "apple") -> TabooGame:
    """A game of `word`, after these moves."""
    game = (settings or taboo()).build()
    game.reset(0, {"word": word})
    for move in moves:
        game.step(move)
    return game


def outcome(*moves: str, settings: TabooConfig | None = None, word: str = "apple") -> str:
    """Return the winner: a seat, `tie`, or `open`."""
    game = played(*moves, settings=settings, word=word)
    if not any(game.terminations.values()):
        return "open"
    assert game.rewards[ATTACKER] == -game.rewards[DEFENDER]
    assert abs(game.rewards[ATTACKER]) in (0.0, 1.0)
    return {1.0: ATTACKER, -1.0: DEFENDER, 0.0: "tie"}[game.rewards[ATTACKER]]


# --- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moves", "winner"),
    [
        (("it is red",), "open"),
        (("an apple is red",), DEFENDER),
        (("APPLES are red",), DEFENDER),
        (("pineapple juice",), "open"),
        (("it is red", "is it big?"), "open"),
        (("it is an A-P-P-L-E",), DEFENDER),
        (("a p p l e",), DEFENDER),
        (("elppa, read backwards",), DEFENDER),
        (("e.l.p.p.a",), DEFENDER),
        (("\uff41\uff50\uff50\uff4c\uff45",), DEFENDER),  # full width
        (("\u0430\u0440\u0440l\u0435",), DEFENDER),  # Cyrillic
        (("ap\u200bple",), DEFENDER),  # a space of no width
        (("a\u0301pple",), DEFENDER),
        (("it is red", "I know the word! It is \uff41pple"), DEFENDER),
        (("a plea",), "open"),
        (("it is red", "maybe apple"), ATTACKER),
        (("it is red", "two apples,please"), ATTACKER),
        (("it is red", "maybe cherry"), "open"),
        (("it is red", "I know the word! It is apple"), DEFENDER),
        (("it is red", "I know the word! It is `Apple`!"), DEFENDER),
        (("it is red", "well... i know the word, it's an apple."), DEFENDER),
        (("it is red", "I know the word! It\u2019s **apples**"), DEFENDER),
        (("it is red", "I know the word! It is cherry"), ATTACKER),
        (("it is red", "I know the word! It is cherry, or apple"), ATTACKER),
        (("it is red", "I know the word! It is"), ATTACKER),
        (("it is red", "an apple? I know the word! It is apple"), DEFENDER),
        (("it is red", "I know the word! It isn't lime"), "open"),
        (("it is red", "I know the word!"), "open"),
    ],
)
def test_who_wins_is_what_the_rules_say(moves: tuple[str, ...], winner: str) -> None:
    assert outcome(*moves) == winner


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("cherry", "cherries"),
        ("ruby", "two rubies"),
        ("Stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "cafe\u0301s"),
        ("bus", "buses"),
        ("cherry", "seirrehc"),
        ("cherry", "c h e r r i e s"),
        ("cherry", "two che-rries"),
        ("cherry", "ch.erry"),
    ],
)
def test_forms_of_a_word_are_the_word(word: str, text: str) -> None:
    assert outcome(text, settings=taboo(words=[word]), word=word) == DEFENDER


def test_without_inflections_only_the_word_itself_counts() -> None:
    strict = taboo(inflections=False)
    assert outcome("apples are red", settings=strict) == "open"
    assert outcome("it is red", "I know the word! It is apples", settings=strict) == ATTACKER
    assert outcome("an apple's colour", settings=strict) == DEFENDER


def test_words_of_several_parts_and_with_signs_are_words_too() -> None:
    odd = taboo(words=["ice cream", "C++", "the sea"])
    assert outcome("so  ICE\ncream it is", settings=odd, word="ice cream") == DEFENDER
    assert outcome("ice, cream", settings=odd, word="ice cream") == "open"
    assert outcome("a C compiler", settings=odd, word="C++") == "open"
    assert outcome("old", "I know the word! It is c++", settings=odd, word="C++") == DEFENDER
    assert outcome("blue", "I know the word! It is the sea", settings=odd, word="the sea") == DEFENDER


def test_it_is_a_tie_when_both_have_spoken_as_often_as_they_may() -> None:
    short = taboo(max_turns=2)
    assert outcome("a", "b", "c", settings=short) == "open"
    assert outcome("a", "b", "c", "d", settings=short) == "tie"
    assert outcome("a", "b", "c", "maybe apple", settings=short) == ATTACKER


def test_findings_say_who_won_and_how_long_it_took() -> None:
    names = ("attacker_win", "defender_win", "tie", "turns")
    for moves, expected in [
        (("apple",), (0.0, 1.0, 0.0, 1.0)),
        (("red", "apple"), (1.0, 0.0, 0.0, 2.0)),
        (("red", "big", "sweet", "ok"), (0.0, 0.0, 1.0, 4.0)),
        (("red", ""), (1.0, 0.0, 0.0, 1.0)),
    ]:
        measures = played(*moves, settings=taboo(max_turns=2)).episode_measures().measures
        assert tuple(measures[name] for name in names) == expected


def test_an_unreadable_answer_is_asked_again_and_then_forfeits() -> None:
    patient = taboo(illegal={"retry": 1})
    game = played("", settings=patient)
    assert game.infos[ATTACKER]["attempt"] == 1
    game.step("")
    assert game.rewards == {ATTACKER: -1.0, DEFENDER: 1.0}
    assert game.reward_components[ATTACKER] == {"illegal": -1.0}
    with pytest.raises(ValueError, match="penalty"):
        taboo(illegal={"then": "penalty"}).build()


# --- what is known ---------------------------------------------------------------------------------------------------


def test_the_attacker_reads_the_word_and_both_read_the_conversation() -> None:
    game = played("it is red", "is it big?")
    assert game.observe(ATTACKER)["text"].splitlines() == [
        "turn 2 of 5 . you attack . word apple",
        "attacker : it is red",
        "defender : is it big?",
    ]
    assert game.observe(DEFENDER)["text"].splitlines()[0] == "turn 2 of 5 . you defend"
    assert game.infos[ATTACKER]["hears"] == SEATS


def test_nothing_that_a_defender_is_asked_holds_the_word() -> None:
    config = taboo(max_turns=6)
    deals = [Deal(f"e{i}", "g", i, config.default_role_of_agent()) for i in range(300)]
    engine = FunctionEngine(lambda request: request.examples[request.seed % len(request.examples)])
    prompt = "{{ observation }} {% for turn in heard %}{{ turn.text }}{% endfor %}"
    cast = {seat: PlayerRole(policy="actor", prompt=prompt) for seat in SEATS}
    longest = 0
    for trajectory in make_simulator(config, engine, **cast).play(deals):
        word = trajectory.start
        for turn in trajectory.turns:
            read = f"{turn.request.messages} {turn.request.state} {turn.request.options}"
            assert (word in read) == (turn.agent == ATTACKER), turn
            longest = max(longest, turn.nth)
    assert longest == 5


def test_who_read_whom_is_everything_said_before() -> None:
    config = taboo()
    lines = iter(["[it is red]", "[is it big?]", "[what is big?]", f"[{GUESS.format(word='apple')}]"])
    cast = {seat: PlayerRole(policy="actor") for seat in SEATS}
    [trajectory] = make_simulator(config, FunctionEngine(lambda request: next(lines)), **cast).play(
        [Deal("e", "e", 0, config.default_role_of_agent(), options=APPLE)]
    )
    edges = {(source[1], target[1]) for source, target in trajectory.graph.edges}
    assert edges == {(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)}
    assert trajectory.returns == {ATTACKER: -1.0, DEFENDER: 1.0}
    assert trajectory.findings.measures["defender_win"] == 1.0


# --- examples --------------------------------------------------------------------------------------------------------


def test_each_word_is_told_from_the_others_by_its_three_hints_and_by_no_two() -> None:
    for word, hints in LEXICON.items():
        assert [other for other, theirs in LEXICON.items() if set(hints) <= set(theirs)] == [word]
        for left_out in hints:
            rest = set(hints) - {left_out}
            assert sum(rest <= set(theirs) for theirs in LEXICON.values()) > 1


def test_examples_of_the_attacker_are_true_and_those_of_the_defender_cover_every_move() -> None:
    game = taboo(max_turns=50).build()
    for seed in range(40):
        game.reset(seed)
        for example in game.infos[ATTACKER]["examples"]:
            assert example.removeprefix("it is ").removeprefix("what is ").removesuffix("?") in LEXICON[game.word]
        game.step("it is here")
        asks = game.infos[DEFENDER]["examples"]
        assert [words.split()[0] for words in asks] == ["is", "is", "maybe", "I"]
    bare = taboo(words=["kite"]).build()
    bare.reset(0)
    assert bare.infos[ATTACKER]["examples"] == ("it is something", "what is something?")


def test_random_play_ends_in_every_way() -> None:
    config = taboo(max_turns=2)
    cast = {seat: PlayerRole(policy="actor") for seat in SEATS}
    deals = [Deal(f"e{i}", "g", i, config.default_role_of_agent()) for i in range(300)]
    trajectories = make_simulator(config, Random().build(None), **cast).play(deals)
    ends = {end: sum(t.findings.measures[end] for t in trajectories) for end in ("attacker_win", "defender_win", "tie")}
    assert sum(ends.values()) == 300
    assert min(ends.values()) > 0
    assert {t.start for t in trajectories} == set(LEXICON)


# --- PettingZoo, seeds, settings -------------------------------------------------------------------------------------


def test_taboo_is_a_function_of_seed_and_actions() -> None:
    one, other = taboo().build(), taboo().build()
    for seed in range(20):
        one.reset(seed)
        rng, moves = random.Random(seed), []
        while not any(one.terminations.values()):
            moves.append(rng.choice([*one.infos[one.agent_selection]["examples"], None]))
            one.step(moves[-1] or "")
        random.seed(seed)
        reset_and_play(other, seed, None, moves)
        for seat in SEATS:
            assert one.observe(seat) == other.observe(seat)
        assert (one.rewards, one.start_state_key(), one.rng.getstate()) == (
            other.rewards,
            other.start_state_key(),
            other.rng.getstate(),
        )


def test_targets_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("kite\n\n  ice   cream \nkite\n")
    assert list(taboo(file=file).hints_by_target_word) == ["kite", "ice cream"]
    assert list(taboo(words=["kite"]).hints_by_target_word) == ["kite"]
    again = TabooConfig.model_validate(taboo(file=file).model_dump(mode="json"))
    assert again.build().words == ("kite", "ice cream")
    again = TabooConfig.model_validate(taboo(words={"kite": ["red"]}).model_dump(mode="json"))
    assert again.hints_by_target_word == {"kite": ("red",)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"words": []}, "words"),
        ({"words": ["kite", " "]}, "is no word"),
        ({"words": ["two  gaps"]}, "is no word"),
        ({"words": ["kite"], "file": "x.txt"}, "give one"),
        ({"max_turns": 0}, "max_turns"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        taboo(**settings)


def test_a_missing_or_empty_file_is_named_when_the_game_is_built(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file: .*absent\.txt"):
        taboo(file=tmp_path / "absent.txt").build()
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="no word in"):
        taboo(file=tmp_path / "empty.txt").build()


def test_an_unknown_target_word_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="'aple' is no target; did you mean 'apple'"):
        played(word="aple")


def test_the_casting_names_the_roles() -> None:
    config: GameConfig = taboo()
    assert config.default_role_of_agent() == {"attacker": "attacker", "defender": "defender"}
    assert config.held_out_reset_options(5) == ()


def test_a_request_for_the_defender_carries_examples_as_its_role_says_them() -> None:
    requests: list[Request] = []
    config = taboo()
    voice = FunctionEngine(lambda request: (requests.append(request), request.examples[0])[1])
    cast = {seat: PlayerRole(policy="actor") for seat in SEATS}
    make_simulator(config, voice, **cast).play([Deal("e", "e", 0, config.default_role_of_agent())])
    assert all(
        example.startswith("[") and example.endswith("]") for request in requests for example in request.examples
    )
