"""Optimal teams of small Hanabi: their plans, played in the game on every deal, score what the optimum says."""

from __future__ import annotations

from itertools import permutations
from statistics import fmean

import pytest

from marl.games.hanabi import COLOURS, HanabiConfig
from marl.games.hanabi_optimum import NO_CARD, HanabiOptimum, HanabiSizes, PublicState


def hanabi(**settings: object) -> HanabiConfig:
    return HanabiConfig.model_validate({"hand": 1} | settings)


def score_of_optimal_team(config: HanabiConfig, optimum: HanabiOptimum, deck: str) -> int:
    """Return the score of a game in which both players follow the plans, which look at the other's card alone."""
    game, state = config.build(), optimum.start
    game.reset(0, {"deck": deck})
    while not any(game.terminations.values()):
        me = game.agent_selection
        [other] = [agent for agent in game.seats if agent != me]
        seen = kind(config, game.hands[other][0]) if game.hands[other] else NO_CARD
        own, plan = kind(config, game.hands[me][0]), optimum.plan(state)
        move = plan[seen]
        cards = frozenset(card for card, planned in plan.items() if planned == move)
        state = next_state(optimum, state, move, own, cards)
        game.step(f"{move} 1" if move in ("play", "discard") else f"hint {other} {move}")
    return game.score


def kind(config: HanabiConfig, card: str) -> int:
    return COLOURS.index(card[0]) * config.ranks + int(card[1]) - 1


def next_state(optimum: HanabiOptimum, state: PublicState, move: str, own: int, cards: frozenset[int]) -> PublicState:
    if move in ("play", "discard"):
        return optimum.after_card(state, move, own, cards)[0]
    return optimum.after_hint(state, cards)


@pytest.mark.parametrize(
    "settings",
    [
        {"colours": 1, "ranks": 3, "hints": 1},
        {"colours": 1, "ranks": 3, "hints": 1, "lives": 2, "keeps_points": True},
        pytest.param({"colours": 2, "ranks": 2, "hints": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_optimal_team_scores_the_optimum_over_all_deals(settings: dict) -> None:
    config = hanabi(**settings)
    sizes = HanabiSizes(COLOURS[: config.colours], config.ranks, config.hints, config.lives, config.keeps_points)
    optimum = HanabiOptimum(sizes)
    # Each order of different cards stands for equally many orders of the deck.
    decks = sorted({" ".join(order) for order in permutations(config.deck)})
    mean = fmean(score_of_optimal_team(config, optimum, deck) for deck in decks)
    assert mean == pytest.approx(optimum.value(optimum.start), abs=1e-9)


def test_two_ranks_of_one_colour_are_always_completed() -> None:
    """By hand: a hint says that a card fits, no hint that it does not; four cards leave time for both points."""
    assert hanabi(colours=1, ranks=2, hints=1).optimal_score() == pytest.approx(2)


def test_the_optimum_of_larger_games_is_not_computed() -> None:
    for settings in ({"hand": 2}, {"players": 3}, {"colours": 2, "ranks": 3}):
        assert hanabi(**settings).optimal_score() is None
