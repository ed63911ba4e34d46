"""Leduc poker against OpenSpiel and against published numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations

import pyspiel
import pytest
from open_spiel.python import policy as spiel_policy
from open_spiel.python.algorithms import expected_game_score, exploitability

from marl.evaluation.game_tree import expected_returns, nash_conv
from marl.games.base import reset_and_play
from marl.games.leduc_poker import AGENTS, DEALS, LeducPoker, LeducPokerConfig
from tests.support.uniform_play import uniform_game_tree, uniform_strategy

RANK = {0: "J", 1: "J", 2: "Q", 3: "Q", 4: "K", 5: "K"}
"""OpenSpiel's card -> its rank."""
ACTIONS = {"fold": 0, "check": 1, "call": 1, "bet": 2, "raise": 2}


def game_after(cards: str, *moves: str) -> LeducPoker:
    game = LeducPokerConfig().build()
    reset_and_play(game, 0, {"cards": cards}, moves)
    return game


def test_the_whole_tree_agrees_with_openspiel() -> None:
    """Every deal of six cards: equal movers, legal moves and payoffs, and information sets that differ in suits."""
    game = LeducPokerConfig().build()
    ours_of, theirs_of, ends = defaultdict(set), defaultdict(set), Counter()

    def walk(theirs: pyspiel.State, deal: tuple[int, ...], moves: list[str]) -> None:
        if theirs.is_chance_node():
            theirs = theirs.child(deal[2])
        cards = "".join(RANK[card] for card in deal)
        reset_and_play(game, 0, {"cards": cards}, moves)
        assert theirs.is_terminal() == any(game.terminations.values())
        if theirs.is_terminal():
            ends[cards] += 1
            assert theirs.returns() == [game._cumulative_rewards[agent] for agent in AGENTS]
            return
        player, info = theirs.current_player(), game.infos[game.agent_selection]
        assert AGENTS[player] == game.agent_selection
        assert theirs.legal_actions() == [ACTIONS[move] for move in info["legal"]]
        seen = [deal[player], deal[2]] if len(game.rounds) == 2 else [deal[player]]
        suits = tuple(card % 2 for card in seen)
        ours_of[theirs.information_state_string()].add((player, info["state"], suits))
        theirs_of[player, info["state"], suits].add(theirs.information_state_string())
        for move in info["legal"]:
            walk(theirs.child(ACTIONS[move]), deal, [*moves, move])

    root = pyspiel.load_game("leduc_poker").new_initial_state()
    for deal in permutations(range(6), 3):
        walk(root.child(deal[0]).child(deal[1]), deal, [])
    assert len(ours_of) == len(theirs_of) == 936
    assert all(len(names) == 1 for names in (*ours_of.values(), *theirs_of.values()))
    assert len({(player, state) for player, state, _ in theirs_of}) == 288
    assert sum(ends.values()) == 120 * 49
    assert ends == {cards: 49 * count for cards, count in DEALS.items()}


def test_uniform_play_has_its_known_value_and_exploitability() -> None:
    tree = uniform_game_tree(LeducPokerConfig())
    strategy = uniform_strategy(tree)
    assert len(tree.requests) == 288
    assert nash_conv(tree, strategy) / 2 == pytest.approx(2.373611, abs=5e-7)
    theirs = pyspiel.load_game("leduc_poker")
    tabular = spiel_policy.UniformRandomPolicy(theirs)
    assert nash_conv(tree, strategy) == pytest.approx(exploitability.nash_conv(theirs, tabular), abs=1e-12)
    worth = expected_game_score.policy_value(theirs.new_initial_state(), [tabular, tabular])
    assert [*expected_returns(tree, strategy).values()] == pytest.approx(worth, abs=1e-12)


@pytest.mark.parametrize(
    ("cards", "moves", "chips"),
    [
        ("KQJ", "bet fold", 1),
        ("KQJ", "check bet fold", -1),
        ("KQJ", "bet raise fold", -3),
        ("KQJ", "check check check check", 1),
        ("QKQ", "check bet raise call check bet raise call", 13),
        ("QQK", "bet raise call bet call", 0),
        ("JQJ", "bet call check bet fold", -3),
        ("KJJ", "bet raise call bet raise fold", -9),
    ],
)
def test_who_folds_or_loses_pays_what_was_put_in(cards: str, moves: str, chips: float) -> None:
    assert game_after(cards, *moves.split()).rewards == {"player_0": chips, "player_1": -chips}


def test_a_player_sees_its_own_card_the_board_and_the_betting() -> None:
    assert game_after("QKJ").observe("player_0")["text"] == "hand_Q board_none first_none second_none"
    game = game_after("QKJ", "check", "bet", "raise", "call", "check")
    assert game.observe("player_1")["text"] == "hand_K board_J first_check_bet_raise_call second_check"
    assert game.infos["player_1"]["state"] == "K J check_bet_raise_call check"


@pytest.mark.parametrize("moves", ["fold", "check raise", "bet raise raise", "bet call fold", "bet call bet check"])
def test_a_move_out_of_place_is_illegal_and_costs_the_worst_loss(moves: str) -> None:
    game = game_after("QKJ", *moves.split())
    assert game.terminations == {"player_0": True, "player_1": True}
    assert sorted(game.rewards.values()) == [-13, 13]


def test_deals_come_as_often_as_six_cards_make_them() -> None:
    game, counts = LeducPokerConfig().build(), Counter[str]()
    for seed in range(12_000):
        game.reset(seed)
        counts[game.start_state_key()] += 1
    starts = {start.options["cards"]: start.probability for start in LeducPokerConfig().all_start_states()}
    assert counts.keys() == starts.keys()
    assert sum(starts.values()) == pytest.approx(1)
    for cards, chance in starts.items():
        assert abs(counts[cards] - 12_000 * chance) < 5 * (12_000 * chance) ** 0.5


@pytest.mark.parametrize("cards", ["JJJ", "JQ", "", 5, ["J", "Q", "K"]])
def test_an_impossible_deal_is_named(cards: object) -> None:
    with pytest.raises(ValueError, match=r"leduc_poker: option cards: .* is no deal; choices: JJQ, "):
        LeducPokerConfig().build().reset(0, {"cards": cards})
