"""Liar's dice for two: bids on all dice, of which each player sees its own; the highest face is wild."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from pydantic import Field

from games.base import TextGame, TextGameConfig
from marl.protocols import Drawing, GameStart

AGENTS = ("player_0", "player_1")
LIAR = "liar"
WALKABLE = 200_000
"""Most histories of a game that exports its deals."""


class LiarsDiceConfig(TextGameConfig):
    """Liar's dice. A win is worth 1, a loss -1, an illegal move -1.5 unless `illegal.penalty` says otherwise."""

    kind: str = "liars_dice"
    dice: int = Field(default=1, ge=1, le=5)
    """Number of dice that each player rolls."""
    faces: int = Field(default=3, ge=2, le=6)
    """Number of faces of a die; the highest counts as any face."""

    @property
    def bids(self) -> tuple[str, ...]:
        """All bids from the lowest to the highest: `2x3` says that at least two of all dice show a 3."""
        return tuple(f"{count}x{face}" for count in range(1, 2 * self.dice + 1) for face in range(1, self.faces + 1))

    def build(self) -> LiarsDice:
        return LiarsDice(self)

    def starts(self) -> tuple[GameStart, ...] | None:
        hands = Counter(_hand(roll) for roll in product(_faces(self.faces), repeat=self.dice))
        # Any set of bids can be made, in rising order. Each may be challenged, and answered with an illegal move.
        if 3 * 2 ** len(self.bids) * len(hands) ** 2 > WALKABLE:
            return None
        return tuple(
            GameStart(hands[first] * hands[second] / hands.total() ** 2, {"roll": f"{first} {second}"})
            for first, second in product(hands, repeat=2)
        )

    def drawing(self, state: str) -> Drawing:
        """Return the agent's dice, and those of the other as unknown."""
        hand, *bids = state.split(" ")
        return Drawing(
            "cards",
            (tuple(hand), ("?",) * self.dice),
            f"rows: own dice, the other's; bids: {', '.join(bids) or 'none'}",
        )


def _faces(count: int) -> str:
    return "123456"[:count]


def _hand(dice: Iterable[str]) -> str:
    """Return dice in rising order."""
    return "".join(sorted(dice))


class LiarsDice(TextGame):
    """OpenSpiel's rules, with bids in the order of its `reset-face`: first by number, then by face."""

    name = "liars_dice"
    zero_sum = True
    foul = 1.5  # more than a loss, so that a hopeless bid is no reason to break the rules
    choices = ("roll",)

    def __init__(self, config: LiarsDiceConfig) -> None:
        self.dice, self.faces, self.bids = config.dice, _faces(config.faces), config.bids
        self.wild = self.faces[-1]
        self.menus = {"": self.bids} | {bid: (*self.bids[n:], LIAR) for n, bid in enumerate(self.bids, 1)}
        """Last bid -> legal moves."""
        self.rules = (
            f"This is liar's dice for two. Each player rolls dice ({self.dice} each), which the other does not see. A "
            f"die shows 1 to {self.wild}, and {self.wild} counts as any face. The players take turns to bid on what "
            "all dice show together: `2x1` says that at least two of them show a 1. A bid is higher than the one "
            "before: of more dice, or of as many with a higher face. Instead of bidding, a player may say "
            f"`{LIAR}`. Then the dice are shown: if the last bid was true, the player who made it wins, otherwise the "
            "other one. You are told your dice (`hand_1`) and all bids in order, yours and those of the other "
            "(`mine_1x1 theirs_2x1`)."
        )
        super().__init__(AGENTS, config.illegal, (*self.bids, LIAR))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        roll = options["roll"] if "roll" in options else " ".join(self._roll(rng) for _ in AGENTS)
        self.hands = self._check_roll(roll)
        self.made: list[str] = []
        """Bids so far."""
        return AGENTS[0]

    def start_key(self) -> str:
        return " ".join(self.hands)

    def legal(self, agent: str) -> tuple[str, ...]:
        return self.menus[self.made[-1] if self.made else ""]

    def describe(self, agent: str) -> str:
        """Return a word for the agent's dice, and one for each bid, from the agent's side."""
        player = AGENTS.index(agent)
        bids = [f"{'theirs' if (place - player) % 2 else 'mine'}_{bid}" for place, bid in enumerate(self.made)]
        return " ".join([f"hand_{self.hands[player]}", *(bids or ["bids_none"])])

    def state_of(self, agent: str) -> str:
        return " ".join([self.hands[AGENTS.index(agent)], *self.made])

    def move(self, action: str) -> str | Mapping[str, float]:
        mover = AGENTS.index(self.agent_selection)
        if action != LIAR:
            self.made.append(action)
            return AGENTS[1 - mover]
        count, face = self.made[-1].split("x")
        true = sum(die in (face, self.wild) for die in "".join(self.hands)) >= int(count)
        loser = mover if true else 1 - mover
        return {AGENTS[loser]: -1.0, AGENTS[1 - loser]: 1.0}

    def _roll(self, rng: random.Random) -> str:
        return _hand(rng.choices(self.faces, k=self.dice))

    def _check_roll(self, roll: Any) -> tuple[str, ...]:
        """Return the dice of each player."""
        hands = tuple(roll.split(" ")) if isinstance(roll, str) else ()
        possible = (len(hand) == self.dice and hand == _hand(hand) and {*hand} <= {*self.faces} for hand in hands)
        if len(hands) != len(AGENTS) or not all(possible):
            form = f"the dice of both players, {self.dice} each, faces 1 to {self.wild} in rising order, as in"
            raise ValueError(
                f"liars_dice: option roll: {roll!r} is no roll; choices: {form} {' '.join(['1' * self.dice] * 2)!r}"
            )
        return hands
