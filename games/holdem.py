"""Limit hold'em for two with a small deck: two private cards each, and public cards for both."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.engines.scripted import ScriptedConfig
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.holdem_hands import RANKS, SUITS, equity, make_deck, rank_hand, sort_cards
from marl.games.two_player import AGENTS, OPPONENT_OF
from marl.protocols import EngineConfig, StateRendering

MOVES = ("fold", "check", "call", "bet", "raise")
STREETS = ("preflop", "flop", "turn", "river")
BLINDS = (1, 2)
"""Chips that `player_0` and `player_1` pay before the deal."""


class EquityPlayer(ScriptedConfig):
    """Player of hold'em that bets and raises from the equity `bet_from` on, and calls from `call_from` on.

    The equity is the probability to beat a random hand. The player never bluffs, so a bet tells its strength.
    """

    kind: str = "holdem_equity"
    ranks: int = Field(default=6, ge=5, le=len(RANKS))
    """Number of ranks of the deck."""
    suits: int = Field(default=4, ge=2, le=len(SUITS))
    """Number of suits of the deck."""
    board_size: int = Field(default=3, ge=3, le=5)
    """Number of public cards at the end of a hand."""
    bet_from: float = Field(default=0.6, ge=0, le=1)
    """Equity from which the player bets or raises."""
    call_from: float = Field(default=0.35, ge=0, le=1)
    """Equity from which the player calls a bet."""

    def move_probabilities(self, state: str, moves: tuple[str, ...]) -> Mapping[str, float]:
        words = state.split(" ")
        board = () if words[4] == "none" else tuple(words[4 : words.index("preflop")])
        strength = equity((words[1], words[2]), board, make_deck(self.ranks, self.suits), self.board_size)
        wishes = ["check"]
        if strength >= self.bet_from:
            wishes = ["raise", "bet", "call"]
        elif strength >= self.call_from:
            wishes = ["check", "call"]
        # `fold` is the last resort; if it is illegal, `check` is the first legal move.
        chosen = next((move for move in (*wishes, "fold") if move in moves), moves[0])
        return {chosen: 1.0}


class HoldemConfig(TextGameConfig):
    """Limit hold'em for two with a small deck. By default an illegal move costs more than the worst regular loss."""

    kind: str = "holdem"
    ranks: int = Field(default=6, ge=5, le=len(RANKS))
    """Number of ranks of the deck, from 2 on: 6 gives the ranks 2 to 7, and 13 the full deck."""
    suits: int = Field(default=4, ge=2, le=len(SUITS))
    """Number of suits of the deck."""
    streets: int = Field(default=2, ge=2, le=4)
    """Rounds of betting: before the flop, after its three cards, and after the one card of each further street."""
    max_raises: int = Field(default=2, ge=1, le=4)
    """Maximum number of bets and raises of both players together in a round of betting."""

    @model_validator(mode="after")
    def _check_deck(self) -> Self:
        if self.ranks * self.suits < 4 + self.board_size:
            raise ValueError(
                f"ranks: {self.ranks} and suits: {self.suits} make {self.ranks * self.suits} cards; choices: at least "
                f"{4 + self.board_size}"
            )
        return self

    @property
    def board_size(self) -> int:
        """Number of public cards at the end of a hand."""
        return self.streets + 1

    @property
    def maximum_loss(self) -> int:
        """Number of chips that a player can lose in a hand."""
        return BLINDS[1] + sum(self.max_raises * bet_size(street) for street in range(self.streets))

    def build(self) -> Holdem:
        return Holdem(self)

    def reference_players(self) -> Mapping[str, EngineConfig]:
        deck = {"ranks": self.ranks, "suits": self.suits, "board_size": self.board_size}
        return {"equity": EquityPlayer.model_validate(deck)}

    def render_state(self, state: str) -> StateRendering | None:
        """Return a table of cards: the agent's hand and the hidden hand in the first row, the board in the second."""
        words = state.split(" ")
        if words[0] != "hand" or "preflop" not in words:
            return None
        betting = words.index("preflop")
        board = () if words[4] == "none" else tuple(words[4:betting])
        return StateRendering("cards", ((words[1], words[2], "?", "?"), board), " ".join(words[betting:]))


def bet_size(street: int) -> int:
    """Return the chips of a bet or raise: the big blind before and after the flop, and twice as many later."""
    return BLINDS[1] * (1 if street < 2 else 2)


class Holdem(TextGame):
    """Limit hold'em for two: `player_0` has the button and the small blind. Rewards are chips won.

    The rules are those of the Annual Computer Poker Competition, as in OpenSpiel's `universal_poker`.
    """

    name = "holdem"
    zero_sum = True
    reset_options = ("cards",)

    def __init__(self, config: HoldemConfig) -> None:
        self.config, self.deck = config, make_deck(config.ranks, config.suits)
        super().__init__(AGENTS, config.illegal, MOVES)
        if config.illegal.penalty is None:
            self.penalty = config.maximum_loss + 1.0
        later = "Then one more card is laid on the board and bet on in the same way"
        further = ("", f" {later}.", f" {later}, and after it another one.")[config.streets - 2]
        doubled = " and 4 chips later" if config.streets > 2 else ""
        self.rules = (
            f"This is limit hold'em for two with {len(self.deck)} cards: the ranks {' '.join(RANKS[: config.ranks])} "
            f"in the suits {' '.join(SUITS[: config.suits])}; `7h` is a seven of hearts. `player_0` pays a blind of "
            "1 chip and `player_1` of 2. Each gets two cards, which the other does not see, and `player_0` acts first. "
            "After this round of betting three cards, the flop, are laid on the board for both, and from then on "
            f"`player_1` acts first.{further} A player may check or bet; a bet is answered by fold, call or raise. A "
            f"bet or raise adds 2 chips{doubled}, and there are at most {config.max_raises} of them in a round; the "
            "blind of 2 is no bet but is called or raised like one. Who folds loses the chips put in. If nobody folds, "
            "the best five cards of a hand and the board win: straight flush, four of a kind, full house, flush, "
            "straight, three of a kind, two pairs, a pair, high card. Equal hands share. You are told your cards, the "
            "board, and the moves of each round in order."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        size = 4 + self.config.board_size
        if "cards" in options:
            cards = options["cards"]
            dealt = tuple(cards.split(" ")) if isinstance(cards, str) else ()
            if len(dealt) != size or len({*dealt} & {*self.deck}) != size:
                raise ValueError(
                    f"holdem: option cards: {cards!r} is no deal; choices: {size} different cards of {self.deck[0]} to "
                    f"{self.deck[-1]}: two of player_0, two of player_1, then the board"
                )
        else:
            dealt = tuple(rng.sample(self.deck, size))
        self.hands = (sort_cards(dealt[:2]), sort_cards(dealt[2:4]))
        self.full_board = (*sort_cards(dealt[4:7]), *dealt[7:])
        self.rounds: list[list[str]] = [[]]
        """Moves of each round of betting; the last item is that of the current round."""
        self.chips: list[int] = [*BLINDS]
        """Chips that each player has put in."""
        self.showdown = False
        return AGENTS[0]

    def start_state_key(self) -> str:
        return " ".join((*self.hands[0], *self.hands[1], *self.full_board))

    @property
    def board(self) -> tuple[str, ...]:
        """Public cards that are visible now."""
        street = len(self.rounds) - 1
        return self.full_board[: street + 2] if street else ()

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        me = AGENTS.index(agent)
        # A player faces a bet if it has put in fewer chips than its opponent.
        facing = self.chips[me] < self.chips[1 - me]
        raises = sum(move in ("bet", "raise") for move in self.rounds[-1])
        moves = ("fold", "call") if facing else ("check",)
        if raises == self.config.max_raises:
            return moves
        # Before the flop a bet is called `raise` even after a call, because the big blind counts as a bet.
        return (*moves, "raise" if facing or len(self.rounds) == 1 else "bet")

    def describe_observation(self, agent: str) -> str:
        """Return the hand, the board and the betting of each round, which is also the information state."""
        hand, board = self.hands[AGENTS.index(agent)], self.board or ("none",)
        betting: list[str] = []
        for street, moves in zip(STREETS, self.rounds, strict=False):
            betting += [street, *(moves or ("none",))]
        return " ".join(("hand", *hand, "board", *board, *betting))

    information_state = describe_observation

    def redeal(self, agent: str, rng: random.Random) -> bool:
        me, board = AGENTS.index(agent), self.board
        seen = {*self.hands[me], *board}
        hidden = [card for card in self.deck if card not in seen]
        drawn = tuple(rng.sample(hidden, 2 + len(self.full_board) - len(board)))
        hands = [self.hands[me], self.hands[me]]
        hands[1 - me] = sort_cards(drawn[:2])
        self.hands, later = (hands[0], hands[1]), drawn[2:]
        # The flop is sorted, as at the deal.
        self.full_board = (*board, *later) if board else (*sort_cards(later[:3]), *later[3:])
        return True

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        agent = self.agent_selection
        me = AGENTS.index(agent)
        moves = self.rounds[-1]
        moves.append(action)
        if action == "fold":
            return self._payoffs_if_player_wins(1 - me)
        if action in ("call", "bet", "raise"):
            self.chips[me] = self.chips[1 - me]
        if action in ("bet", "raise"):
            self.chips[me] += bet_size(len(self.rounds) - 1)
            return OPPONENT_OF[agent]
        # The round goes on after its first check, or after the small blind's call: the opponent has a choice.
        if len(moves) == 1:
            return OPPONENT_OF[agent]
        if len(self.rounds) < self.config.streets:
            self.rounds.append([])
            return AGENTS[1]
        self.showdown = True
        first, second = (rank_hand(hand + self.full_board) for hand in self.hands)
        return dict.fromkeys(AGENTS, 0.0) if first == second else self._payoffs_if_player_wins(int(first < second))

    def _payoffs_if_player_wins(self, winner_index: int) -> Mapping[str, float]:
        lost = float(self.chips[1 - winner_index])
        return {AGENTS[winner_index]: lost, AGENTS[1 - winner_index]: -lost}

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the hand: `showdown` (1 if nobody folded, else 0) and `pot` [chips of both]."""
        return EpisodeMeasuresAndNewStarts({"showdown": float(self.showdown), "pot": float(sum(self.chips))})
