"""Kuhn poker: three cards, one bet, two players (Kuhn, 1950)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from marl.engines.scripted import ScriptedConfig
from marl.games.base import (
    FinalRewards,
    IllegalMoveHandling,
    NextAgent,
    TextGame,
    TextGameConfig,
    equiprobable_starts,
    format_move_menu,
)
from marl.games.two_player import AGENTS, OPPONENT_OF
from marl.protocols import EngineConfig, GameStart, StateRendering

DECK = "JQK"
DEALS = tuple(first + second for first in DECK for second in DECK if first != second)
MOVES = {"": ("check", "bet"), "check": ("check", "bet"), "bet": ("fold", "call"), "check bet": ("fold", "call")}
"""Betting of a hand so far -> legal moves. The hand ends as soon as its betting has no entry in this table."""
MENUS = {betting: f"moves {format_move_menu(moves)}" for betting, moves in MOVES.items()}
"""Betting of a hand so far -> end of the observation, which lists the moves."""


class KuhnEquilibrium(ScriptedConfig):
    """Player that follows the Nash equilibrium `alpha` of Kuhn poker, worth -1/18 chips to the first player."""

    kind: str = "kuhn_equilibrium"
    alpha: float = Field(default=1 / 6, ge=0, le=1 / 3)
    """Probability that the first player bets with a jack. It is 3 times as high with a king, and 0 with a queen."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        card, _, betting = state.partition(" ")
        # Each row holds the probabilities of betting or calling with a jack, a queen and a king.
        by_card = {
            "": (self.alpha, 0.0, 3 * self.alpha),
            "check bet": (0.0, self.alpha + 1 / 3, 1.0),
            "bet": (0.0, 1 / 3, 1.0),
            "check": (1 / 3, 0.0, 1.0),
        }[betting]
        chance = by_card[DECK.index(card)]
        return {move: chance if move in ("bet", "call") else 1 - chance for move in moves}


class KuhnPokerConfig(TextGameConfig):
    """Kuhn poker. By default an illegal move costs 2 chips, the worst regular loss."""

    kind: str = "kuhn_poker"

    def build(self) -> KuhnPoker:
        return KuhnPoker(self.illegal)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        return {"nash": KuhnEquilibrium()}

    def render_state(self, state: str) -> StateRendering:
        card, _, betting = state.partition(" ")
        return StateRendering("cards", ((card, "?"),), f"betting: {betting or 'none'}")

    def all_start_states(self) -> tuple[GameStart, ...]:
        return equiprobable_starts("cards", DEALS)


class KuhnPoker(TextGame):
    """Kuhn poker with an ante of one chip and a bet of one chip. Rewards are chips won."""

    name = "kuhn_poker"
    zero_sum = True
    default_penalty = 2.0
    reset_options = ("cards",)
    rules = (
        "This is Kuhn poker for two. There are three cards: K beats Q, and Q beats J. Each player antes one chip and "
        "gets one card, which the other does not see. The first player checks or bets one chip. After a bet the other "
        "player calls it with another chip, or folds and loses the ante. After a check the other player may check or "
        "bet, and a bet is answered in the same way. If nobody folds, the higher card wins the chips. You are told "
        "your card, the betting so far, and the moves that you have."
    )

    def __init__(self, illegal: IllegalMoveHandling) -> None:
        super().__init__(AGENTS, illegal, ("check", "bet", "fold", "call"))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.cards = options["cards"] if "cards" in options else rng.choice(DEALS)
        if self.cards not in DEALS:
            raise ValueError(f"kuhn_poker: option cards: {self.cards!r} is no deal; choices: {', '.join(DEALS)}")
        self.betting = ""
        return AGENTS[0]

    def start_state_key(self) -> str:
        return self.cards

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return MOVES[self.betting]

    def describe_observation(self, agent: str) -> str:
        card = self.cards[AGENTS.index(agent)]
        return f"card {card} . betting {self.betting or 'none'} . {MENUS.get(self.betting, 'over')}"

    def information_state(self, agent: str) -> str:
        card = self.cards[AGENTS.index(agent)]
        return f"{card} {self.betting}" if self.betting else card

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        mover = self.agent_selection
        self.betting = f"{self.betting} {action}" if self.betting else action
        if self.betting in MOVES:
            return OPPONENT_OF[mover]
        if action == "fold":
            gain = -1.0 if mover == AGENTS[0] else 1.0
        else:
            stake = 2.0 if action == "call" else 1.0
            gain = stake if DECK.index(self.cards[0]) > DECK.index(self.cards[1]) else -stake
        return {AGENTS[0]: gain, AGENTS[1]: -gain}
