"""Negotiation: bargains and payoffs against OpenSpiel's `bargaining`, the grammar of offers, measures, privacy."""

from __future__ import annotations

import random
import re
from itertools import product

import pyspiel
import pytest

from marl.core.types import Deal
from marl.engines.scripted import Random
from marl.evaluation.game_tree import best_response_return, build_game_tree
from marl.games.base import reset_and_play
from marl.games.negotiation import NegotiationConfig, NegotiationGame
from marl.games.negotiation_terms import (
    BargainingProblem,
    enumerate_bargaining_problems,
    format_offer,
    is_pareto_efficient,
    parse_move,
    parse_offer,
    possible_payoffs,
)
from marl.roles.answering import PlayerRole
from tests.support.enumerated_games import CASTING
from tests.support.small_games import PAIR, make_simulator

ITEMS = ("book", "hat", "ball")
LEWIS = "1 2 3 / 8 1 0 / 4 0 2"
"""The first of OpenSpiel's thousand bargains."""
SMALL = {"items": ["book", "hat"], "pool": [2, 2], "total": 4, "max_turns": 2}


def negotiation(**settings: object) -> NegotiationConfig:
    return NegotiationConfig.model_validate(settings)


def played(*moves: str, bargain: str = LEWIS, **settings: object) -> NegotiationGame:
    game = negotiation(**settings).build()
    game.reset(0, {"bargain": bargain})
    for move in moves:
        game.step(move)
    return game


# --- bargains and payoffs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openspiel() -> pyspiel.Game:
    return pyspiel.load_game("bargaining", {"discount": 0.9, "max_turns": 6})


def bargain_of(state: pyspiel.State) -> str:
    """A bargain of OpenSpiel's, as ours are written."""
    return " / ".join(" ".join(re.findall(r"\d+", line.split(":", 1)[1])) for line in str(state).splitlines()[:3])


def test_openspiels_thousand_bargains_are_among_ours(openspiel: pyspiel.Game) -> None:
    root, ours = openspiel.new_initial_state(), negotiation().bargaining_problems
    theirs = [bargain_of(root.child(outcome)) for outcome, _ in root.chance_outcomes()]
    assert theirs[0] == LEWIS
    assert len(set(theirs)) == 1000
    assert set(theirs) <= ours.keys()


def test_the_bargains_are_those_of_the_papers_description() -> None:
    """Lewis et al., section 2.1, written once more by brute force over all numbers."""

    def described(pool: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]) -> bool:
        worth = [sum(v * n for v, n in zip(values, pool, strict=True)) for values in (first, second)]
        pairs = list(zip(first, second, strict=True))
        return worth == [4, 4] and all(a or b for a, b in pairs) and any(a and b for a, b in pairs)

    pools = [pool for pool in product(range(1, 4), repeat=2) if 2 <= sum(pool) <= 3]
    numbers = list(product(range(5), repeat=2))
    expected = {
        BargainingProblem(pool, (a, b)) for pool in pools for a in numbers for b in numbers if described(pool, a, b)
    }
    assert set(enumerate_bargaining_problems(2, (2, 3), 4).values()) == expected
    assert len(expected) > 30


def test_moves_ends_and_discounted_payoffs_agree_with_openspiel(openspiel: pyspiel.Game) -> None:
    """Random play of every third bargain, walking away excepted, which OpenSpiel does not have."""
    game, rng = negotiation(discount=0.9, max_turns=6).build(), random.Random(0)
    root = openspiel.new_initial_state()
    for outcome in range(0, 1000, 3):
        state = root.child(outcome)
        game.reset(0, {"bargain": bargain_of(state)})
        while not state.is_terminal():
            names = {move_of(state, action): action for action in state.legal_actions()}
            assert game.agent_selection == PAIR[state.current_player()]
            assert {*names, "walk away"} == set(game.infos[game.agent_selection]["legal"] or ())
            move = "accept" if "accept" in names and rng.random() < 0.2 else rng.choice(sorted(names))
            state.apply_action(names[move])
            game.step(move)
        assert all(game.terminations.values())
        assert [game.rewards[agent] for agent in PAIR] == pytest.approx(state.returns())


def move_of(state: pyspiel.State, action: int) -> str:
    text = state.action_to_string(state.current_player(), action)
    return format_offer(tuple(map(int, re.findall(r"\d+", text))), ITEMS) if "Offer" in text else "accept"


def test_an_agreement_pays_each_its_own_values() -> None:
    game = played("take 1 book 1 hat 0 ball", "take 0 book 0 hat 3 ball", "accept")
    assert game.rewards == {"player_0": 8.0 + 2.0, "player_1": 6.0}
    assert game.episode_measures().measures == {
        "agreement": 1.0, "pareto_efficient": 1.0, "joint_value": 16.0, "joint_share": 1.0, "turns": 3.0,
    }  # fmt: skip


def test_walking_away_and_the_last_turn_pay_nothing() -> None:
    for game in (played("walk away"), played(*["take 1 book 0 hat 0 ball"] * 4, max_turns=4)):
        assert all(game.terminations.values())
        assert game.rewards == {"player_0": 0.0, "player_1": 0.0}
        assert game.episode_measures().measures["agreement"] == game.episode_measures().measures["joint_share"] == 0.0


def test_what_both_value_at_nothing_is_an_agreement_too() -> None:
    game = played("take 0 book 0 hat 0 ball", "take 1 book 2 hat 3 ball", "accept")
    assert game.rewards == {"player_0": 0.0, "player_1": 10.0}
    assert game.episode_measures().measures["agreement"] == 1.0


def test_efficiency_is_that_of_all_divisions() -> None:
    """Of 1 book, 2 hats and 3 balls, 24 divisions by hand: the frontier of (8, 1, 0) and (4, 0, 2)."""
    bargain = negotiation().bargaining_problems[LEWIS]
    reached = {
        (8 * book + hats, 4 * (1 - book) + 2 * (3 - balls))
        for book, hats, balls in product(range(2), range(3), range(4))
    }
    assert possible_payoffs(bargain) == reached
    assert {pair for pair in reached if is_pareto_efficient(bargain, pair)} == {(10, 6), (2, 10)}


# --- grammar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "move"),
    [
        *[(text, "accept") for text in ("accept", "I accept.", "Fine, we have a deal. I ACCEPT!", "no?\nI  accept")],
        *[(text, "walk away") for text in ("walk away", "This is silly; I walk away.")],
        ("take 1 book 0 hat 2 ball", "take 1 book 0 hat 2 ball"),
        ("I take 2 books, a hat and three balls.", "take 2 book 1 hat 3 ball"),
        ("You like hats. I take 1 ball, and 2 books", "take 2 book 0 hat 1 ball"),
        ("I take no books and 2 hats", "take 0 book 2 hat 0 ball"),
        ("I take nothing.", "take 0 book 0 hat 0 ball"),
        *[
            (text, None)
            for text in (
                *("", "   ", "hello", "I won't accept.", "I do not accept.", "Should I accept?", "I accept your offer"),
                *("I accept. Thank you!", "accept or walk away", "I take 2 books and 1 book", "I take 2 cars", "take"),
                *("I take books", "I take 2", "I take -1 book", "I take 1.5 books", "I take 1000 books", "take all"),
                *("I will never say: I accept.", "I'd never say:\n\nI accept.", "Never would I say, \n I accept."),
                *("You may hear me say -\nI walk away", 'Say "I accept."'),
                *("I would take 2 books", "take 1 book or 2 hats", "I take \u0662 books", "never accept"),
            )
        ],
    ],
)  # fmt: skip
def test_the_last_sentence_alone_makes_the_move(text: str, move: str | None) -> None:
    assert parse_move(text, ITEMS) == move


def test_every_offer_is_read_as_it_is_worded() -> None:
    for taken in product(range(6), repeat=3):
        assert parse_offer(format_offer(taken, ITEMS)) == taken
        assert parse_move(f"Well. I {format_offer(taken, ITEMS)}.", ITEMS) == format_offer(taken, ITEMS)


def test_no_text_takes_long_to_read() -> None:
    for text in ("." * 100_000, "i " * 50_000, "take 1 book, " * 20_000, " \n" * 50_000, "take " + "1 " * 50_000):
        assert parse_move(text, ITEMS) is None


@pytest.mark.parametrize("text", ["hello", "I take 5 books.", "I accept."])
def test_what_cannot_be_read_or_done_is_asked_again_and_then_forfeits(text: str) -> None:
    game = played(text, talk=True, illegal={"retry": 1})
    assert game.infos["player_0"]["attempt"] == 1
    assert game.moves == ()
    game.step(text)
    assert game.rewards == {"player_0": -1.0, "player_1": 0.0}
    assert game.episode_measures().measures["agreement"] == 0.0


def test_free_text_is_played_as_its_offer_and_heard_as_it_was_said() -> None:
    game = played("The book is dear to me.\nI take a book and 2 hats.", "Hm.  I accept.", talk=True)
    assert game.moves == ("take 1 book 2 hat 0 ball", "accept")
    assert game.rewards == {"player_0": 10.0, "player_1": 6.0}
    assert game.observe("player_1")["text"].splitlines() == [
        "turn 3 of 10 . pool 1 book 2 hat 3 ball . worth to you book 4 hat 0 ball 2",
        "they : The book is dear to me. I take a book and 2 hats.",
        "you : Hm. I accept.",
    ]


# --- what is known ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("talk", [False, True])
def test_nothing_that_an_agent_observes_depends_on_the_others_values(talk: bool) -> None:
    """For every pair of bargains with the same pool and own values: the same observations, infos and examples."""
    config = negotiation(items=["book", "hat"], pool=[3, 4], total=6, talk=talk)
    one, other, rng, compared = config.build(), config.build(), random.Random(0), 0
    every = list(config.bargaining_problems.values())
    for bargain in every:
        for agent, name in enumerate(PAIR):
            alike = [b for b in every if b.pool == bargain.pool and b.values[agent] == bargain.values[agent]]
            twin = rng.choice(alike)
            compared += twin != bargain
            seed = rng.randrange(1000)
            one.reset(seed, {"bargain": str(bargain)})
            other.reset(seed, {"bargain": str(twin)})
            while not any(one.terminations.values()):
                assert repr(one.observe(name)) == repr(other.observe(name))
                assert one.infos[name] == other.infos[name]
                info = one.infos[one.agent_selection]
                move = rng.choice(info["legal"] or info["examples"])
                one.step(move)
                other.step(move)
            assert repr(one.observe(name)) == repr(other.observe(name))
    assert compared > len(every)


def test_prompts_show_ones_own_values_and_who_said_what() -> None:
    game = played("take 1 book 1 hat 0 ball")
    assert game.observe("player_0")["text"] == (
        "turn 2 of 10 . pool 1 book 2 hat 3 ball . worth to you book 8 hat 1 ball 0\nyou : take 1 book 1 hat 0 ball"
    )
    assert game.observe("player_1")["text"] == (
        "turn 2 of 10 . pool 1 book 2 hat 3 ball . worth to you book 4 hat 0 ball 2\nthey : take 1 book 1 hat 0 ball"
    )


# --- play ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("talk", [False, True])
def test_random_play_ends_in_every_way(talk: bool) -> None:
    config = negotiation(**{**SMALL, "max_turns": 4}, talk=talk)
    cast = {"player": PlayerRole(policy="actor")}
    deals = [Deal(f"e{i}", "g", i, dict.fromkeys(PAIR, "player")) for i in range(200)]
    trajectories = make_simulator(config, Random().build(None), **cast).play(deals)
    findings = [trajectory.findings.measures for trajectory in trajectories]
    assert {row["agreement"] for row in findings} == {0.0, 1.0}
    assert {row["pareto_efficient"] for row in findings} == {0.0, 1.0}
    assert all(row["pareto_efficient"] <= row["agreement"] for row in findings)
    assert all(0 <= row["joint_share"] <= 1 for row in findings)
    assert {*findings[0]} == {*(config.measure_names() or ())}


def test_a_small_instance_is_walked_whole() -> None:
    """Two moves: against random offers the second does best to accept. Half of the pool is left to it on average, worth
    half of 4, and one of five first moves walks away."""
    game = negotiation(**SMALL)
    assert len(game.all_start_states() or ()) == len(game.bargaining_problems) == 21
    tree = build_game_tree(game, CASTING, dict.fromkeys(PAIR, "player"))
    uniform = {
        situation: dict.fromkeys(request.options or {}, 1 / len(request.options or {}))
        for situation, request in tree.requests.items()
    }
    assert best_response_return(tree, uniform, "player_1") == pytest.approx(4 / 2 * 4 / 5)
    assert negotiation().all_start_states() is None
    assert negotiation(**SMALL, talk=True).all_start_states() is None


def test_negotiation_is_a_function_of_seed_and_actions() -> None:
    one, other = negotiation(talk=True).build(), negotiation(talk=True).build()
    for seed in range(20):
        one.reset(seed)
        rng, moves = random.Random(seed), []
        while not any(one.terminations.values()):
            moves.append(rng.choice([*one.infos[one.agent_selection]["examples"]]))
            one.step(moves[-1])
        random.seed(seed)
        reset_and_play(other, seed, None, moves)
        assert (one.conversation, one.rewards, one.rng.getstate()) == (
            other.conversation,
            other.rewards,
            other.rng.getstate(),
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"items": ["book"]}, "items"),
        ({"items": ["book", "book"]}, "'book' is no name of a kind"),
        ({"items": ["book", "Hat 2"]}, "'Hat 2' is no name of a kind"),
        ({"pool": [2, 7]}, r"pool: \[2, 7\] is no range; choices: \[low, high\] with 3 <= low"),
        ({"pool": [5, 9]}, "<= high <= 8"),
        ({"items": ["book", "hat"], "pool": [8, 8], "total": 2}, "total: no pool of 8 to 8 items can be worth 2"),
        ({"total": 1}, "total"),
        ({"talk": True, "illegal": {"then": "random"}}, "illegal.then: 'random' needs a game with a list of moves"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        negotiation(**settings).build()


def test_an_unknown_bargain_is_refused_with_an_example() -> None:
    with pytest.raises(
        ValueError, match=r"option bargain: '1 / 2 / 3' is none of this game's 5793; choices: the pool /"
    ):
        played(bargain="1 / 2 / 3")
