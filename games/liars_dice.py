"""Liar's dice for two: players bid on all dice but see only their own; the highest face is wild."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from pydantic import Field

from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig
from marl.games.two_player import AGENTS, MAX_ENUMERATED_HISTORIES
from marl.protocols import GameStart, StateRendering

LIAR = "liar"


class LiarsDiceConfig(TextGameConfig):
    """Liar's dice. A win is worth 1, a loss -1 and, by default, an illegal move -1.5."""

    kind: str = "liars_dice"
    dice: int = Field(default=1, ge=1, le=5)
    """Number of dice of each player."""
    faces: int = Field(default=3, ge=2, le=6)
    """Number of faces of a die; the highest face is wild: it counts as any face."""

    def build(self) -> LiarsDice:
        return LiarsDice(self)

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        hands = Counter(map(_format_hand, product("123456"[: self.faces], repeat=self.dice)))
        bids = 2 * self.dice * self.faces
        # Bids only rise, so every subset of them is a history, which a challenge or an illegal move may end.
        if 3 * 2**bids * len(hands) ** 2 > MAX_ENUMERATED_HISTORIES:
            return None
        starts: list[GameStart] = []
        for first, second in product(hands, repeat=2):
            probability = hands[first] * hands[second] / hands.total() ** 2
            starts.append(GameStart(probability, {"roll": f"{first} {second}"}))
        return tuple(starts)

    def render_state(self, state: str) -> StateRendering:
        """Return a table of dice: the agent's in the first row, the opponent's (hidden) in the second."""
        hand, *bids = state.split(" ")
        return StateRendering(
            "cards",
            (tuple(hand), ("?",) * self.dice),
            f"rows: own dice, the other's; bids: {', '.join(bids) or 'none'}",
        )


def _format_hand(dice: Iterable[str]) -> str:
    """Return the dice of one player as text, in ascending order."""
    return "".join(sorted(dice))


class LiarsDice(TextGame):
    """Liar's dice with OpenSpiel's rules and its bid order `reset-face`: by number of dice, then by face."""

    name = "liars_dice"
    zero_sum = True
    # An illegal move costs more than a loss, so that a hopeless bid is no reason to break the rules.
    default_penalty = 1.5
    reset_options = ("roll",)

    def __init__(self, config: LiarsDiceConfig) -> None:
        self.dice, self.faces = config.dice, "123456"[: config.faces]
        claims = product(range(1, 2 * config.dice + 1), self.faces)
        self.bids = tuple(f"{count}x{face}" for count, face in claims)
        """All bids in ascending order. `2x3` claims at least two dice with a 3 among the dice of both players."""
        self.wild = self.faces[-1]
        self.menus = {"": self.bids} | {bid: (*self.bids[n:], LIAR) for n, bid in enumerate(self.bids, 1)}
        """Last bid ("" before the first bid) -> legal moves."""
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

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        if "roll" in options:
            roll = options["roll"]
            self.hands = tuple(roll.split(" ")) if isinstance(roll, str) else ()
            possible = len(self.hands) == len(AGENTS)
            for hand in self.hands:
                possible &= len(hand) == self.dice and hand == _format_hand(hand) and {*hand} <= {*self.faces}
            if not possible:
                form = f"the dice of both players, {self.dice} each, faces 1 to {self.wild} in rising order, as in"
                raise ValueError(
                    f"liars_dice: option roll: {roll!r} is no roll; choices: {form} {' '.join(['1' * self.dice] * 2)!r}"
                )
        else:
            self.hands = tuple(_format_hand(rng.choices(self.faces, k=self.dice)) for _ in AGENTS)
        self.bid_history: list[str] = []
        return AGENTS[0]

    def start_state_key(self) -> str:
        return " ".join(self.hands)

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.menus[self.bid_history[-1] if self.bid_history else ""]

    def describe_observation(self, agent: str) -> str:
        """Return a word for the agent's dice and one per bid: `mine_...` for its own, `theirs_...` for others."""
        player = AGENTS.index(agent)
        bids: list[str] = []
        for index, bid in enumerate(self.bid_history):
            # `player_0` makes every bid with an even index.
            bids.append(f"theirs_{bid}" if (index - player) % 2 else f"mine_{bid}")
        return " ".join([f"hand_{self.hands[player]}", *(bids or ["bids_none"])])

    def redeal(self, agent: str, rng: random.Random) -> bool:
        rolls = [_format_hand(rng.choices(self.faces, k=self.dice)) for _ in AGENTS]
        rolls[AGENTS.index(agent)] = self.hands[AGENTS.index(agent)]
        self.hands = tuple(rolls)
        return True

    def information_state(self, agent: str) -> str:
        return " ".join([self.hands[AGENTS.index(agent)], *self.bid_history])

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        mover = AGENTS.index(self.agent_selection)
        if action != LIAR:
            self.bid_history.append(action)
            return AGENTS[1 - mover]
        count, face = self.bid_history[-1].split("x")
        true = sum(die in (face, self.wild) for die in "".join(self.hands)) >= int(count)
        loser = mover if true else 1 - mover
        return {AGENTS[loser]: -1.0, AGENTS[1 - loser]: 1.0}
