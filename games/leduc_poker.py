"""Leduc poker: six cards, two rounds of betting, one public card, two players (Southey et al., 2005, 1207.1411)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from marl.games.base import FinalRewards, IllegalMoveHandling, NextAgent, TextGame, TextGameConfig
from marl.games.two_player import AGENTS
from marl.protocols import GameStart, StateRendering

RANKS = "JQK"
DECK = "JJQQKK"
DEALS = Counter(map("".join, permutations(DECK, 3)))
"""Ranks of the first player's, second player's and public card -> number of the 120 deals with these ranks."""
UNBET, RAISABLE, CAPPED = ("check", "bet"), ("fold", "call", "raise"), ("fold", "call")
MOVES = {
    "": UNBET,
    "check": UNBET,
    "bet": RAISABLE,
    "check_bet": RAISABLE,
    "bet_raise": CAPPED,
    "check_bet_raise": CAPPED,
}
"""Betting of a round so far -> legal moves. The round ends as soon as its betting has no entry in this table."""
ANTE = 1
BETS = (2, 4)
"""Number of chips that a bet or raise adds in the first and in the second round."""


class LeducPokerConfig(TextGameConfig):
    """Leduc poker. By default an illegal move costs 13 chips, the worst regular loss."""

    kind: str = "leduc_poker"

    def build(self) -> LeducPoker:
        return LeducPoker(self.illegal)

    def render_state(self, state: str) -> StateRendering | None:
        """Return a table of cards: the agent's card and a hidden card in the first row, the board in the second."""
        facts = state.split(" ")
        if len(facts) != 4:
            return None
        hand, board, *rounds = facts
        first, second = (betting.replace("_", " ") for betting in rounds)
        return StateRendering(
            "cards", ((hand, "?"), ("" if board == "none" else board,)), f"first round: {first}; second round: {second}"
        )

    def all_start_states(self) -> tuple[GameStart, ...]:
        return tuple(GameStart(count / DEALS.total(), {"cards": cards}) for cards, count in DEALS.items())


class LeducPoker(TextGame):
    """Leduc poker with OpenSpiel's rules. Cards have ranks but no suits, which never matter. Rewards are chips won."""

    name = "leduc_poker"
    zero_sum = True
    default_penalty = 13.0
    reset_options = ("cards",)
    rules = (
        "This is Leduc poker for two. There are six cards, two of each rank: K beats Q, and Q beats J. Each player "
        "antes one chip and gets one card, which the other does not see. There are two rounds of betting, and "
        "`player_0` begins both. In a round, a player checks or bets; a bet is answered with fold, call or raise, and "
        "a raise, of which there is one in a round, with fold or call. A bet or raise adds two chips in the first "
        "round and four in the second. Between the rounds a card is laid on the board, which both see. Who folds "
        "loses the chips put in. If nobody folds, a player whose card has the rank of the board wins, otherwise the "
        "higher card, and equal cards share. You are told your card (`hand_K`), the board (`board_Q`), and what was "
        "done in the first and the second round, in order (`first_bet_call second_check`)."
    )

    def __init__(self, illegal: IllegalMoveHandling) -> None:
        super().__init__(AGENTS, illegal, ("check", "bet", "fold", "call", "raise"))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        self.cards = options["cards"] if "cards" in options else "".join(rng.sample(DECK, 3))
        if self.cards not in tuple(DEALS):
            raise ValueError(f"leduc_poker: option cards: {self.cards!r} is no deal; choices: {', '.join(DEALS)}")
        self.rounds = [""]
        """Betting of each round so far; the last item is that of the current round."""
        return AGENTS[0]

    def start_state_key(self) -> str:
        return self.cards

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return MOVES[self.rounds[-1]]

    def describe_observation(self, agent: str) -> str:
        """Return four words: the agent's card, the board, and the betting of the first and of the second round."""
        # Legal moves are not listed: they follow from the betting, and would fill three quarters of the prompt.
        hand, board, first, second = self.information_state(agent).split(" ")
        return f"hand_{hand} board_{board} first_{first} second_{second}"

    def information_state(self, agent: str) -> str:
        """Return the card of `agent`, the board, and the betting of the first and of the second round."""
        first, second = (*self.rounds, "")[:2]
        board = self.cards[2] if len(self.rounds) > 1 else "none"
        return " ".join([self.cards[AGENTS.index(agent)], board, first or "none", second or "none"])

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        betting = f"{self.rounds[-1]}_{action}" if self.rounds[-1] else action
        self.rounds[-1] = betting
        if action == "fold":
            loser = AGENTS.index(self.agent_selection)
        elif betting in MOVES:
            return AGENTS[len(betting.split("_")) % 2]
        elif len(self.rounds) < len(BETS):
            self.rounds.append("")
            return AGENTS[0]
        else:
            # A pair with the board beats every other hand; else the higher rank wins.
            first, second = ((rank == self.cards[2], RANKS.index(rank)) for rank in self.cards[:2])
            if first == second:
                return dict.fromkeys(AGENTS, 0.0)
            loser = int(first > second)
        lost = ANTE
        for betting, chips in zip(self.rounds, BETS, strict=False):
            # The player who folds has not paid the last bet or raise, so this bet is not lost.
            matched = betting.count("bet") + betting.count("raise") - betting.endswith("fold")
            lost += matched * chips
        return {AGENTS[loser]: -float(lost), AGENTS[1 - loser]: float(lost)}
