"""Goofspiel for two: in each round, both players bid a card for a prize at the same time (Ross, 1971)."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Literal

from pydantic import Field

from marl.games.base import NextAgent, TextGameConfig, equiprobable_starts
from marl.games.matrix_games import SimultaneousGame
from marl.games.two_player import MAX_ENUMERATED_HISTORIES
from marl.protocols import GameStart, StateRendering


class GoofspielConfig(TextGameConfig):
    """Goofspiel. By default an illegal move costs more than a lost game."""

    kind: str = "goofspiel"
    simultaneous = True
    cards: int = Field(default=4, ge=2, le=13)
    """Number of cards of each player, and of prizes; both have the values 1 to this number."""
    prizes: Literal["random", "ascending", "descending"] = "random"
    """Order of the prizes, each of which is shown just before the bids for it."""
    bids: Literal["open", "hidden"] = "open"
    """Information about earlier rounds that a player has: the opponent's bids, or (`hidden`) only who won a prize."""
    pays: Literal["win", "points"] = "win"
    """Reward: `win` pays 1 for more points than the opponent, 0 for a tie and -1 for fewer; `points` pays a player's
    points minus the mean of both players' points."""

    def build(self) -> Goofspiel:
        return Goofspiel(self)

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        histories = math.factorial(self.cards) if self.prizes == "random" else 1
        # `per_order` is the number of histories for one order of the prizes, including histories with an illegal bid.
        per_order = math.perm(self.cards, self.cards - 1) ** 2
        for bids in range(self.cards - 1):
            # After `bids` rounds, either of 2 players makes one of `cards - bids` bids or an illegal one.
            per_order += 2 * math.perm(self.cards, bids) ** 2 * (1 + self.cards - bids)
        if histories * per_order > MAX_ENUMERATED_HISTORIES:
            return None
        # All possible orders of the prizes are equally likely.
        values = range(1, self.cards + 1)
        orders: list[Sequence[int]] = [values if self.prizes == "ascending" else values[::-1]]
        if self.prizes == "random":
            orders = list(permutations(values))
        return equiprobable_starts("prizes", [" ".join(map(str, order)) for order in orders])

    def render_state(self, state: str) -> StateRendering:
        """Return a table with one column per round: the prize, the agent's bid, and known facts of the other bid."""
        row_of = {"prize": 0, "mine": 1, "theirs": 2, "won": 2, "lost": 2, "tied": 2}
        cells: dict[tuple[int, int], str] = {}
        rounds = 0
        for word in state.split(" "):
            if (fact := re.fullmatch(r"([a-z]+)(\d+)(?:_(\d+))?", word)) and fact[1] in row_of:
                number = int(fact[2])
                cells[row_of[fact[1]], number] = fact[3] or fact[1]
                rounds = max(rounds, number)
        rows: list[tuple[str, ...]] = []
        for row in range(3):
            rows.append(tuple(cells.get((row, number), "") for number in range(1, rounds + 1)))
        return StateRendering(
            "cards", tuple(rows), "rows: prizes, own bids, bids of the other (hidden: who won the prize)"
        )


class Goofspiel(SimultaneousGame):
    """Goofspiel with OpenSpiel's rules: equal bids lose the prize, and the last cards are bid without a move."""

    name = "goofspiel"
    agent_prefix = "player"
    common_reward = False
    zero_sum = True
    # An illegal move costs more than a loss, so that a lost game is no reason to break the rules.
    default_penalty = 1.5
    reset_options = ("prizes",)

    def __init__(self, config: GoofspielConfig) -> None:
        self.config = config
        self.deck = tuple(str(value) for value in range(1, config.cards + 1))
        points = config.pays == "points"
        super().__init__(config.illegal, (self.deck, self.deck), -sum(map(int, self.deck)) / 2 if points else 0.0)
        shown = {
            "open": "your bid and the bid of the other (`prize1_3 mine1_2 theirs1_1`)",
            "hidden": "your bid, and whether you won or lost it, or both bid alike (`prize1_3 mine1_2 won1`)",
        }[config.bids]
        aim = {"win": "Who has more points at the end wins.", "points": "Get as many more points as you can."}
        self.rules = (
            f"This is goofspiel for two. Each player has the cards 1 to {self.deck[-1]}, and the prizes are worth 1 to "
            f"{self.deck[-1]} points. In each round one prize is shown, and both bid one of their cards for it at the "
            "same time. The higher card wins the prize; equal cards lose it for both. Both cards are gone then. The "
            f"last card of each is bid without a choice. {aim[config.pays]} You are told, for each round before, "
            f"its prize, {shown}, and the prize of this round."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        if "prizes" in options:
            prizes = options["prizes"]
            self.prizes = tuple(prizes.split(" ")) if isinstance(prizes, str) else ()
            if sorted(self.prizes) != sorted(self.deck):
                raise ValueError(
                    f"goofspiel: option prizes: {prizes!r} is no order of the prizes; choices: {' '.join(self.deck)!r} "
                    "in any order"
                )
        elif self.config.prizes == "random":
            self.prizes = tuple(rng.sample(self.deck, len(self.deck)))
        else:
            self.prizes = self.deck if self.config.prizes == "ascending" else self.deck[::-1]
        self.bids: tuple[list[str], list[str]] = ([], [])
        """Bids of each player in the completed rounds."""
        return super().start_new_game(rng, options)

    def start_state_key(self) -> str:
        return " ".join(self.prizes)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        used_cards = self.bids[self.seats.index(agent)]
        return tuple(card for card in self.deck if card not in used_cards)

    def observed_history(self, agent: str) -> str:
        """Return three words per completed round (prize, own bid, other bid or result), then the current prize."""
        player = self.seats.index(agent)
        words: list[str] = []
        for number, prize in enumerate(self.prizes[: len(self.bids[0]) + 1], 1):
            words.append(f"prize{number}_{prize}")
            if number <= len(self.bids[0]):
                mine, theirs = self.bids[player][number - 1], self.bids[1 - player][number - 1]
                shown = (
                    f"theirs{number}_{theirs}" if self.config.bids == "open" else f"{_bid_result(mine, theirs)}{number}"
                )
                words += [f"mine{number}_{mine}", shown]
        return " ".join(words)

    # The history determines the legal bids, so the observation does not list them.
    describe_observation = information_state = observed_history

    def payoff(self, joint_move: tuple[str, ...]) -> Mapping[str, float] | None:
        for bids, card in zip(self.bids, joint_move, strict=True):
            bids.append(card)
        if len(self.bids[0]) < len(self.deck) - 1:
            return None
        # Each player has one card left, which is bid for the last prize.
        for bids, agent in zip(self.bids, self.seats, strict=True):
            bids += self.legal_actions(agent)
        sign = {"won": 1, "tied": 0, "lost": -1}
        lead = 0
        for prize, first, second in zip(self.prizes, *self.bids, strict=True):
            lead += int(prize) * sign[_bid_result(first, second)]
        reward = lead / 2 if self.config.pays == "points" else float(lead > 0) - float(lead < 0)
        return dict(zip(self.seats, (reward, -reward), strict=True))


def _bid_result(own_bid: str, other_bid: str) -> Literal["won", "tied", "lost"]:
    """Return the result, for the player who bid `own_bid`, of this bid against the bid `other_bid`."""
    if int(own_bid) == int(other_bid):
        return "tied"
    return "won" if int(own_bid) > int(other_bid) else "lost"
