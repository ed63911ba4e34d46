"""Kuhn poker: three cards, one bet, two players (Kuhn, 1950)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from games.base import IllegalMove, TextGame, TextGameConfig
from marl.engines.scripted import ScriptedConfig
from marl.protocols import Drawing, EngineConfig, GameStart

DECK = "JQK"
DEALS = tuple(first + second for first in DECK for second in DECK if first != second)
AGENTS = ("player_0", "player_1")
MOVES = {"": ("check", "bet"), "check": ("check", "bet"), "bet": ("fold", "call"), "check bet": ("fold", "call")}
"""Betting so far -> legal moves. The hand is over when the betting has no entry."""


class Equilibrium(ScriptedConfig):
    """Nash equilibrium of Kuhn poker, worth -1/18 chips to the first player. One of a family: see `alpha`."""

    kind: str = "kuhn_equilibrium"
    alpha: float = Field(default=1 / 6, ge=0, le=1 / 3)
    """Probability that the first player bets a jack; kings are bet three times as often, queens never."""

    def probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        card, _, betting = state.partition(" ")
        # Probabilities of betting or calling with a jack, a queen and a king.
        by_card = {
            "": (self.alpha, 0.0, 3 * self.alpha),
            "check bet": (0.0, self.alpha + 1 / 3, 1.0),
            "bet": (0.0, 1 / 3, 1.0),
            "check": (1 / 3, 0.0, 1.0),
        }[betting]
        chance = by_card[DECK.index(card)]
        return {move: chance if move in ("bet", "call") else 1 - chance for move in moves}


class KuhnPokerConfig(TextGameConfig):
    """Kuhn poker. An illegal move costs 2 chips, the worst regular loss, unless `illegal.penalty` says otherwise."""

    kind: str = "kuhn_poker"

    def build(self) -> KuhnPoker:
        return KuhnPoker(self.illegal)

    def opponents(self) -> Mapping[str, EngineConfig]:
        return {"nash": Equilibrium()}

    def drawing(self, state: str) -> Drawing:
        card, _, betting = state.partition(" ")
        return Drawing("cards", ((card, "?"),), f"betting: {betting or 'none'}")

    def starts(self) -> tuple[GameStart, ...]:
        return tuple(GameStart(1 / len(DEALS), {"cards": cards}) for cards in DEALS)


class KuhnPoker(TextGame):
    """Each antes one chip; a called bet doubles the stakes; the higher card wins. Rewards are chips won."""

    name = "kuhn_poker"
    zero_sum = True
    foul = 2.0
    choices = ("cards",)
    rules = (
        "This is Kuhn poker for two. There are three cards: K beats Q, and Q beats J. Each player antes one chip and "
        "gets one card, which the other does not see. The first player checks or bets one chip. After a bet the other "
        "player calls it with another chip, or folds and loses the ante. After a check the other player may check or "
        "bet, and a bet is answered in the same way. If nobody folds, the higher card wins the chips. You are told "
        "your card, the betting so far, and the moves that you have."
    )

    def __init__(self, illegal: IllegalMove) -> None:
        super().__init__(AGENTS, illegal, ("check", "bet", "fold", "call"))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.cards = options["cards"] if "cards" in options else rng.choice(DEALS)
        if self.cards not in DEALS:
            raise ValueError(f"kuhn_poker: option cards: {self.cards!r} is no deal; choices: {', '.join(DEALS)}")
        self.betting = ""
        return AGENTS[0]

    def start_key(self) -> str:
        return self.cards

    def legal(self, agent: str) -> tuple[str, ...]:
        return MOVES[self.betting]

    def describe(self, agent: str) -> str:
        moves = " ".join(["moves", *(f"[{move}]" for move in MOVES[self.betting])]) if self.betting in MOVES else "over"
        return f"card {self._card(agent)} . betting {self.betting or 'none'} . {moves}"

    def state_of(self, agent: str) -> str:
        card = self._card(agent)
        return f"{card} {self.betting}" if self.betting else card

    def move(self, action: str) -> str | Mapping[str, float]:
        mover = self.agent_selection
        self.betting = f"{self.betting} {action}" if self.betting else action
        if self.betting in MOVES:
            return AGENTS[mover == AGENTS[0]]
        gain = self._gain(action, mover)
        return {AGENTS[0]: gain, AGENTS[1]: -gain}

    def _card(self, agent: str) -> str:
        return self.cards[agent == AGENTS[1]]

    def _gain(self, last: str, mover: str) -> float:
        """Return the chips that the first player wins."""
        if last == "fold":
            return -1.0 if mover == AGENTS[0] else 1.0
        stake = 2.0 if last == "call" else 1.0
        return stake if DECK.index(self.cards[0]) > DECK.index(self.cards[1]) else -stake
