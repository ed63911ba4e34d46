"""Goofspiel for two: in each round both bid a card at once for a prize (Ross, 1971)."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from itertools import permutations
from typing import Any, Literal

from pydantic import Field

from games.base import TextGameConfig
from games.simultaneous import SimultaneousGame
from marl.protocols import Drawing, GameStart

WALKABLE = 200_000
"""Most histories of a game that exports its deals."""


class GoofspielConfig(TextGameConfig):
    """Goofspiel. An illegal move costs more than losing the game, unless `illegal.penalty` says otherwise."""

    kind: str = "goofspiel"
    cards: int = Field(default=4, ge=2, le=13)
    """Number of cards that each player has, and of prizes: all are worth 1 to this many points."""
    prizes: Literal["random", "ascending", "descending"] = "random"
    """Order of the prizes. A prize is seen before the bids for it, a random one not earlier."""
    bids: Literal["open", "hidden"] = "open"
    """Players are told what the other one bid in the rounds before, or (hidden) only who won each prize."""
    pays: Literal["win", "points"] = "win"
    """Reward: 1 for more points than the other, 0 for as many, -1 for fewer; or the points above the mean of both."""

    def orders(self) -> tuple[tuple[int, ...], ...]:
        """Return the possible orders of the prizes, each as likely."""
        values = range(1, self.cards + 1)
        if self.prizes == "random":
            return tuple(permutations(values))
        return (tuple(values if self.prizes == "ascending" else reversed(values)),)

    def build(self) -> Goofspiel:
        return Goofspiel(self)

    def starts(self) -> tuple[GameStart, ...] | None:
        shuffled = self.prizes == "random"
        if _histories(self.cards) * (math.factorial(self.cards) if shuffled else 1) > WALKABLE:
            return None
        orders = self.orders()
        return tuple(GameStart(1 / len(orders), {"prizes": " ".join(map(str, order))}) for order in orders)

    def drawing(self, state: str) -> Drawing:
        """Return a row of prizes, a row of the agent's bids, and a row of what is known of the other's."""
        facts = [re.fullmatch(r"([a-z]+)(\d+)(?:_(\d+))?", word) for word in state.split(" ")]
        known = {(fact[1], int(fact[2])): fact[3] or fact[1] for fact in facts if fact}
        rounds = range(1, 1 + max((number for _, number in known), default=0))
        theirs = ("theirs", "won", "lost", "tied")
        rows = [tuple(known.get((row, n), "") for n in rounds) for row in ("prize", "mine")]
        rows.append(tuple(next((known[name, n] for name in theirs if (name, n) in known), "") for n in rounds))
        return Drawing("cards", tuple(rows), "rows: prizes, own bids, bids of the other (hidden: who won the prize)")


def _histories(cards: int) -> int:
    """Return the number of histories with one order of the prizes, in each of which an illegal move can be made."""
    joint = [math.perm(cards, played) ** 2 for played in range(cards)]
    return sum(2 * count * (1 + cards - played) for played, count in enumerate(joint[:-1])) + joint[-1]


class Goofspiel(SimultaneousGame):
    """OpenSpiel's rules: the higher bid wins the prize, equal bids lose it for both; last cards are played by rule."""

    name = "goofspiel"
    seat = "player"
    common = False
    zero_sum = True
    foul = 1.5  # more than a loss, so that a lost game is no reason to break the rules
    choices = ("prizes",)

    def __init__(self, config: GoofspielConfig) -> None:
        self.config = config
        self.deck = tuple(str(value) for value in range(1, config.cards + 1))
        points = config.pays == "points"
        super().__init__(config.illegal, (self.deck, self.deck), -sum(map(int, self.deck)) / 2 if points else 0.0)
        self.rules = self._rules()

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        if "prizes" in options:
            self.prizes = self._check_prizes(options["prizes"])
        elif self.config.prizes == "random":
            self.prizes = tuple(rng.sample(self.deck, len(self.deck)))
        else:
            self.prizes = self.deck if self.config.prizes == "ascending" else self.deck[::-1]
        self.bids: tuple[list[str], list[str]] = ([], [])
        """Cards that each player has bid so far, the round that is played now excluded."""
        return super().deal(rng, options)

    def start_key(self) -> str:
        return " ".join(self.prizes)

    def legal(self, agent: str) -> tuple[str, ...]:
        gone = self.bids[self.seats.index(agent)]
        return tuple(card for card in self.deck if card not in gone)

    def describe(self, agent: str) -> str:
        return self.known(agent)

    def state_of(self, agent: str) -> str:
        return self.known(agent)

    def known(self, agent: str) -> str:
        """Return three words for each round before, with its number, and one for the prize of this round."""
        words, player = [], self.seats.index(agent)
        for number, prize in enumerate(self.prizes[: len(self.bids[0]) + 1], 1):
            words.append(f"prize{number}_{prize}")
            if number <= len(self.bids[0]):
                mine, theirs = (bids[number - 1] for bids in (self.bids[player], self.bids[1 - player]))
                shown = f"theirs{number}_{theirs}" if self.config.bids == "open" else f"{_result(mine, theirs)}{number}"
                words += [f"mine{number}_{mine}", shown]
        return " ".join(words)

    def payoff(self, joint: tuple[str, ...]) -> Mapping[str, float] | None:
        for bids, card in zip(self.bids, joint, strict=True):
            bids.append(card)
        if len(self.bids[0]) < len(self.deck) - 1:
            return None
        for bids, agent in zip(self.bids, self.seats, strict=True):
            bids += self.legal(agent)
        sign = {"won": 1, "tied": 0, "lost": -1}
        rounds = zip(self.prizes, *self.bids, strict=True)
        lead = sum(int(prize) * sign[_result(mine, theirs)] for prize, mine, theirs in rounds)
        won = lead / 2 if self.config.pays == "points" else float(lead > 0) - float(lead < 0)
        return dict(zip(self.seats, (won, -won), strict=True))

    def _check_prizes(self, prizes: Any) -> tuple[str, ...]:
        order = tuple(prizes.split(" ")) if isinstance(prizes, str) else ()
        if sorted(order) != sorted(self.deck):
            raise ValueError(
                f"goofspiel: option prizes: {prizes!r} is no order of the prizes; choices: {' '.join(self.deck)!r} in "
                "any order"
            )
        return order

    def _rules(self) -> str:
        shown = {
            "open": "your bid and the bid of the other (`prize1_3 mine1_2 theirs1_1`)",
            "hidden": "your bid, and whether you won or lost it, or both bid alike (`prize1_3 mine1_2 won1`)",
        }[self.config.bids]
        aim = {"win": "Who has more points at the end wins.", "points": "Get as many more points as you can."}
        return (
            f"This is goofspiel for two. Each player has the cards 1 to {self.deck[-1]}, and the prizes are worth 1 to "
            f"{self.deck[-1]} points. In each round one prize is shown, and both bid one of their cards for it at the "
            "same time. The higher card wins the prize; equal cards lose it for both. Both cards are gone then. The "
            f"last card of each is bid without a choice. {aim[self.config.pays]} You are told, for each round before, "
            f"its prize, {shown}, and the prize of this round."
        )


def _result(mine: str, theirs: str) -> Literal["won", "tied", "lost"]:
    """Return what became of the first bid."""
    if int(mine) == int(theirs):
        return "tied"
    return "won" if int(mine) > int(theirs) else "lost"
