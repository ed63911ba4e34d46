"""Hidden facts drawn anew for searches, and random continuations without a copy of the game."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations
from math import sqrt
from typing import Any

import pytest

from marl.core.types import Deal
from marl.games.base import TextGame, TextGameConfig
from marl.games.connect_four import ConnectFourConfig
from marl.games.guess_who import GuessWhoConfig
from marl.games.hanabi import HanabiConfig
from marl.games.holdem import HoldemConfig
from marl.games.liars_dice import LiarsDiceConfig
from marl.games.tic_tac_toe import TicTacToeConfig
from marl.games.wrappers.openspiel import OpenSpielConfig
from marl.roles.answering import PlayerRole
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.episode import Episode
from marl.search.determinization import sample_determinizations
from marl.search.positions import SearchPosition

HIDDEN: dict[str, TextGameConfig] = {
    "liars_dice": LiarsDiceConfig(dice=3, faces=6),
    "holdem": HoldemConfig(streets=3),
    "guess_who": GuessWhoConfig(),
    "hanabi": HanabiConfig(colours=3, ranks=4, hand=3),
    "openspiel_leduc": OpenSpielConfig(name="leduc_poker"),
}


def played(config: TextGameConfig, seed: int, turns: int) -> TextGame:
    """Return a game after up to `turns` random moves, before its end."""
    game: Any = config.build()
    rng = random.Random(seed)
    game.reset(seed)
    for _ in range(turns):
        before = game.copy()
        game.step(rng.choice(game.infos[game.agent_selection]["legal"]))
        if any(game.terminations.values()):
            return before
    return game


@pytest.mark.parametrize("config", HIDDEN.values(), ids=HIDDEN)
def test_a_redealt_game_looks_the_same_to_the_agent_and_can_be_played_on(config: TextGameConfig) -> None:
    changed = 0
    for seed in range(12):
        game = played(config, seed, turns=seed % 7)
        agent, before = game.agent_selection, game.state()
        # With the seed of the deal, the same draws would lead to the same deal.
        other, rng = game.copy(1), random.Random(100 + seed)
        assert other.redeal(agent, rng)
        assert other.information_state(agent) == game.information_state(agent)
        assert other.describe_observation(agent) == game.describe_observation(agent)
        assert other.legal_actions(agent) == game.legal_actions(agent)
        assert game.state() == before
        changed += other.state() != before
        while not any(other.terminations.values()):
            other.step(rng.choice(other.infos[other.agent_selection]["legal"]))
    assert changed >= 6


def expect_frequencies(drawn: Counter[str], exact: Counter[str]) -> None:
    """Check that the relative frequencies of `drawn` are those of `exact`, within 5 standard errors."""
    count, total = drawn.total(), exact.total()
    assert drawn.keys() <= exact.keys()
    for outcome, ways in exact.items():
        chance = ways / total
        assert drawn[outcome] / count == pytest.approx(chance, abs=5 * sqrt(chance * (1 - chance) / count))


def test_hands_of_hanabi_are_drawn_as_the_deck_would_deal_them_given_the_hints() -> None:
    game: Any = HanabiConfig(colours=2, ranks=2, hand=2).build()
    game.reset(3)
    agent, other = game.seats
    game.step(f"hint {other} {game.hands[other][0][0]}")
    game.step(f"hint {agent} {game.hands[agent][0][1]}")
    unseen = [*game.hands[agent], *game.deck]
    exact = Counter[str]()
    for order in permutations(unseen):
        facts = zip(order, game.known[agent], strict=False)
        if all(card[0] in colours and card[1] in ranks for card, (colours, ranks) in facts):
            exact[" ".join(order[:2])] += 1
    assert len(exact) > 1
    drawn, rng = Counter[str](), random.Random(0)
    for _ in range(3000):
        game.redeal(agent, rng)
        drawn[" ".join(game.hands[agent])] += 1
    expect_frequencies(drawn, exact)


def test_hidden_dice_and_cards_are_drawn_with_the_chances_of_the_deal() -> None:
    dice: Any = LiarsDiceConfig(dice=2, faces=3).build()
    dice.reset(0)
    drawn, rng = Counter[str](), random.Random(0)
    for _ in range(3000):
        dice.redeal("player_1", rng)
        drawn[dice.hands[0]] += 1
    # Two dice of three faces: pairs have a chance of 1/9, other sorted hands of 2/9.
    expect_frequencies(drawn, Counter({"11": 1, "22": 1, "33": 1, "12": 2, "13": 2, "23": 2}))
    cards: Any = HoldemConfig(ranks=5, suits=2, streets=2).build()
    cards.reset(0)
    seen, rng = Counter[str](), random.Random(0)
    for _ in range(3000):
        cards.redeal("player_0", rng)
        seen[" ".join(sorted(cards.hands[1]))] += 1
        assert len({*cards.hands[0], *cards.hands[1], *cards.full_board}) == 4 + len(cards.full_board)
    # 28 pairs of the 8 cards that player_0 does not hold, all with the same chance.
    assert len(seen) == 28
    expect_frequencies(seen, Counter(dict.fromkeys(seen, 1)))


def test_a_search_finds_states_of_a_hand_that_random_deals_would_never_repeat() -> None:
    config = LiarsDiceConfig(dice=5, faces=6)
    deal = Deal("e", "e", 0, dict.fromkeys(("player_0", "player_1"), "player"), "eval", options={"roll": "66666 12345"})
    episode = Episode(config.build(), deal, RoleRequestBuilder({"player": PlayerRole(policy="actor")}, 0))
    states: Any = sample_determinizations(config, episode, 8, random.Random(0))
    assert [weight for weight, _ in states] == [1 / 8] * 8
    assert {game.hands[0] for _, game in states} == {"66666"}
    assert len({game.hands[1] for _, game in states}) > 4


@pytest.mark.parametrize(
    "config",
    [TicTacToeConfig(), ConnectFourConfig(rows=4, columns=4), OpenSpielConfig(name="connect_four")],
    ids=["tic_tac_toe", "connect_four", "openspiel"],
)
def test_random_continuations_end_as_if_the_same_moves_were_played(config: TextGameConfig) -> None:
    for seed in range(20):
        game = played(config, seed, turns=seed % 5)
        numbers, rng = random.Random(seed), random.Random(seed)
        returns, before = game.random_returns(numbers.random), game.state()
        position = SearchPosition(game.copy())
        while not position.over:
            position.play(position.moves[int(rng.random() * len(position.moves))])
        assert returns == position.returns
        assert game.state() == before


def test_random_continuations_of_a_game_with_dice_draw_every_outcome() -> None:
    game: Any = OpenSpielConfig(name="pig(winscore=20)").build()
    game.reset(0)
    rng = random.Random(0)
    results = Counter(game.random_returns(rng.random) for _ in range(200))
    assert set(results) == {(1.0, -1.0), (-1.0, 1.0)}
    assert min(results.values()) > 50
