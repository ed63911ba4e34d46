"""Leduc poker: six cards, two rounds of betting, one public card, two players (Southey et al., 2005, 1207.1411)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from typing import Any

from games.base import IllegalMove, TextGame, TextGameConfig
from marl.protocols import Drawing, GameStart

RANKS = "JQK"
DECK = "JJQQKK"
DEALS = Counter(map("".join, permutations(DECK, 3)))
"""Ranks of the first player's card, the second player's and the public one -> number of the 120 deals with them."""
AGENTS = ("player_0", "player_1")
UNBET, RAISABLE, CAPPED = ("check", "bet"), ("fold", "call", "raise"), ("fold", "call")
MOVES = {
    "": UNBET,
    "check": UNBET,
    "bet": RAISABLE,
    "check_bet": RAISABLE,
    "bet_raise": CAPPED,
    "check_bet_raise": CAPPED,
}
"""Betting of a round so far -> legal moves. The round is over when its betting has no entry."""
ANTE = 1
BETS = (2, 4)
"""Chips that a bet or raise adds in the first and in the second round."""


class LeducPokerConfig(TextGameConfig):
    """Leduc poker. An illegal move costs 13 chips, the worst regular loss, unless `illegal.penalty` says otherwise."""

    kind: str = "leduc_poker"

    def build(self) -> LeducPoker:
        return LeducPoker(self.illegal)

    def drawing(self, state: str) -> Drawing | None:
        """Return the two hands in a row, the other's face down, and the board below."""
        facts = state.split(" ")
        if len(facts) != 4:
            return None
        hand, board, *rounds = facts
        first, second = (played.replace("_", " ") for played in rounds)
        return Drawing(
            "cards", ((hand, "?"), ("" if board == "none" else board,)), f"first round: {first}; second round: {second}"
        )

    def starts(self) -> tuple[GameStart, ...]:
        return tuple(GameStart(count / DEALS.total(), {"cards": cards}) for cards, count in DEALS.items())


class LeducPoker(TextGame):
    """OpenSpiel's rules. Suits decide nothing, so a card is its rank alone. Rewards are chips won."""

    name = "leduc_poker"
    zero_sum = True
    foul = 13.0
    choices = ("cards",)
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

    def __init__(self, illegal: IllegalMove) -> None:
        super().__init__(AGENTS, illegal, ("check", "bet", "fold", "call", "raise"))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        self.cards = options["cards"] if "cards" in options else "".join(rng.sample(DECK, 3))
        if self.cards not in tuple(DEALS):
            raise ValueError(f"leduc_poker: option cards: {self.cards!r} is no deal; choices: {', '.join(DEALS)}")
        self.rounds = [""]
        """Betting of each round, the one that is played now last."""
        return AGENTS[0]

    def start_key(self) -> str:
        return self.cards

    def legal(self, agent: str) -> tuple[str, ...]:
        return MOVES[self.rounds[-1]]

    def describe(self, agent: str) -> str:
        """Return a word for each fact, which says what the fact is about, always in the same place.

        The legal moves follow from them. Listed, they would be three of four tokens that a small model reads.
        """
        hand, board, first, second = self._facts(agent)
        return f"hand_{hand} board_{board} first_{first} second_{second}"

    def state_of(self, agent: str) -> str:
        return " ".join(self._facts(agent))

    def move(self, action: str) -> str | Mapping[str, float]:
        played = f"{self.rounds[-1]}_{action}" if self.rounds[-1] else action
        self.rounds[-1] = played
        if action == "fold":
            return self._result(AGENTS.index(self.agent_selection))
        if played not in MOVES:
            if len(self.rounds) == len(BETS):
                return self._result(self._loser())
            self.rounds.append("")
        return AGENTS[_count(self.rounds[-1]) % 2]

    def _facts(self, agent: str) -> tuple[str, str, str, str]:
        """Return the agent's card, the board, and what was done in the first and the second round."""
        first, second = (*self.rounds, "")[:2]
        board = self.cards[2] if len(self.rounds) > 1 else "none"
        return self.cards[AGENTS.index(agent)], board, first or "none", second or "none"

    def _loser(self) -> int | None:
        """Return the player who loses the showdown; None if they share."""
        first, second = ((rank == self.cards[2], RANKS.index(rank)) for rank in self.cards[:2])
        return None if first == second else int(first > second)

    def _result(self, loser: int | None) -> Mapping[str, float]:
        """Return the chips won: the loser pays the ante and every bet or raise that was not answered with fold."""
        if loser is None:
            return dict.fromkeys(AGENTS, 0.0)
        answered = (played.count("bet") + played.count("raise") - played.endswith("fold") for played in self.rounds)
        lost = float(ANTE + sum(count * chips for count, chips in zip(answered, BETS, strict=False)))
        return {AGENTS[loser]: -lost, AGENTS[1 - loser]: lost}


def _count(betting: str) -> int:
    """Return the number of moves of a round so far."""
    return len(betting.split("_")) if betting else 0
