"""Negotiation about a pool of items with private values ("Deal or No Deal", Lewis et al., arXiv 1706.05125).

Moves are numbers and items alone, or, with `talk`, any text whose last sentence is such a move. OpenSpiel's
`bargaining` has the same rules, apart from walking away.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import Field, model_validator

from games.base import TextGame, TextGameConfig
from games.negotiation_terms import (
    ACCEPT,
    WALK_AWAY,
    Bargain,
    bargains,
    is_efficient,
    offer,
    offers,
    outcomes,
    quantities,
    read_move,
)
from marl.config import cut
from marl.protocols import GameStart
from marl.types import Findings

AGENTS = ("player_0", "player_1")
MEASURES = ("agreement", "pareto_efficient", "joint_value", "joint_share", "turns")
LARGEST_TREE = 50_000
"""Most histories, roughly, with which a game exports its deals, so that it can be walked whole."""


class NegotiationConfig(TextGameConfig):
    """Negotiation: both propose how to share out items that are worth something else to each; general-sum.

    An agreement pays each agent what it gets is worth to it, no agreement 0, and an illegal move -1 unless
    `illegal.penalty` says otherwise.
    """

    kind: str = "negotiation"
    items: tuple[str, ...] = Field(default=("book", "hat", "ball"), min_length=2, max_length=3)
    """Names of the two or three kinds of items, in small letters, in the singular."""
    pool: tuple[int, int] = (5, 7)
    """Smallest and largest number of items in all; there is at least one of each kind."""
    total: int = Field(default=10, ge=2, le=12)
    """Value of the whole pool to each agent. All bargains that Lewis et al. describe are equally likely."""
    max_turns: int = Field(default=10, ge=2, le=100)
    """Number of moves of both, after which there is no agreement."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Factor on what an agreement pays, for each move from the third on."""
    talk: bool = False
    """With true, a move is any text whose last sentence accepts, walks away or makes an offer; what cannot be read so
    is an illegal move. With false, offers have one wording (`take 1 book 0 hat 2 ball`), and all that can be made are
    listed as legal moves."""

    @model_validator(mode="after")
    def _check_items(self) -> Self:
        for item in self.items:
            if not (item.isascii() and item.isalpha() and item.islower()) or self.items.count(item) > 1:
                raise ValueError(f"items: {item!r} is no name of a kind; choices: different words in small letters")
        low, high = self.pool
        if not len(self.items) <= low <= high <= 8:
            bounds = f"[low, high] with {len(self.items)} <= low <= high <= 8"
            raise ValueError(f"pool: {list(self.pool)} is no range; choices: {bounds}, one item of each kind at least")
        if not self.bargains:
            raise ValueError(f"total: no pool of {low} to {high} items can be worth {self.total} to both; raise total")
        return self

    @cached_property
    def bargains(self) -> Mapping[str, Bargain]:
        """All bargains that are dealt, by their text."""
        return bargains(len(self.items), self.pool, self.total)

    def build(self) -> Negotiation:
        return Negotiation(self)

    def starts(self) -> tuple[GameStart, ...] | None:
        moves = (len(offers(bargain.pool, self.items)) + 2 for bargain in self.bargains.values())
        if self.talk or sum(count**self.max_turns for count in moves) > LARGEST_TREE:
            return None
        return tuple(GameStart(1 / len(self.bargains), {"bargain": text}) for text in self.bargains)

    def measured(self) -> Collection[str]:
        return MEASURES


class Negotiation(TextGame):
    """`player_0` moves first. Each is told the pool, its own values and the moves so far, and no values of others."""

    name = "negotiation"
    foul = 1.0  # no agreement pays 0, so that breaking the rules is worse than walking away
    choices = ("bargain",)

    def __init__(self, config: NegotiationConfig) -> None:
        self.config, self.items = config, config.items
        self.rules = _rules(config)
        # A pool holds an item of each kind.
        largest = config.pool[1] - len(self.items) + 1
        listed = offers((largest,) * len(self.items), self.items)
        super().__init__(AGENTS, config.illegal, None if config.talk else (*listed, ACCEPT, WALK_AWAY))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        known = self.config.bargains
        key = options["bargain"] if "bargain" in options else rng.choice(tuple(known))
        if key not in known:
            raise ValueError(
                f"negotiation: option bargain: {cut(repr(key))} is none of this game's {len(known)}; choices: "
                f"the pool / what one item is worth to player_0 / to player_1, such as {next(iter(known))!r}"
            )
        self.bargain = known[key]
        self.moves: tuple[str, ...] = ()
        """Moves so far, as `offer` words them."""
        self.conversation: tuple[str, ...] = ()
        """The same as they were said."""
        self.reached: tuple[int, int] | None = None
        """Values of the agreement, not discounted."""
        return AGENTS[0]

    def start_key(self) -> str:
        return str(self.bargain)

    def legal(self, agent: str) -> tuple[str, ...] | None:
        return None if self.config.talk else self._moves()

    def admits(self, action: str) -> bool:
        return (read_move(action, self.items) in self._moves()) if self.config.talk else super().admits(action)

    def describe(self, agent: str) -> str:
        """Return what `agent` knows: the pool, its own values, and what both have said. It is the state, too."""
        me = AGENTS.index(agent)
        turn = min(len(self.moves) + 1, self.config.max_turns)
        pool = " ".join(f"{count} {item}" for count, item in zip(self.bargain.pool, self.items, strict=True))
        values = " ".join(f"{item} {value}" for item, value in zip(self.items, self.bargain.values[me], strict=True))
        lines = [f"{('you', 'they')[(nth + me) % 2]} : {text}" for nth, text in enumerate(self.conversation)]
        return "\n".join([f"turn {turn} of {self.config.max_turns} . pool {pool} . worth to you {values}", *lines])

    def state_of(self, agent: str) -> str:
        return self.describe(agent)

    def examples(self, agent: str) -> tuple[str, ...]:
        """Return a few random moves with a remark before them, which says nothing of anybody's values."""
        if not self.config.talk:
            return ()
        draw, moves = self.rng.choice, self._moves()
        remarks = ("", "let us be fair. ", f"I like every {draw(self.items)}. ", f"you may like a {draw(self.items)}. ")
        chosen = [draw(moves), draw(moves), *(move for move in (ACCEPT,) if move in moves)]
        return tuple(f"{draw(remarks)}I {move}." for move in chosen)

    def move(self, action: str) -> str | Mapping[str, float]:
        mover = AGENTS.index(self.agent_selection)
        played = (read_move(action, self.items) or "") if self.config.talk else action
        if played == ACCEPT:
            self.reached = self.bargain.payoffs(1 - mover, quantities(self.moves[-1]))
        self.moves, self.conversation = (*self.moves, played), (*self.conversation, " ".join(action.split()))
        if self.reached:
            factor = self.config.discount ** max(0, len(self.moves) - 2)
            return {agent: value * factor for agent, value in zip(AGENTS, self.reached, strict=True)}
        if played == WALK_AWAY or len(self.moves) == self.config.max_turns:
            return dict.fromkeys(AGENTS, 0.0)
        return AGENTS[1 - mover]

    def findings(self) -> Findings:
        """Return the measures of the episode, each worked out from all divisions of the pool.

        `agreement`, `pareto_efficient`: 1 if there is one, 1 if it is efficient; `joint_value`: what both got,
        undiscounted; `joint_share`: the same as a share of the most that was possible; `turns`: number of moves.
        """
        joint = sum(self.reached or (0,))
        efficient = self.reached is not None and is_efficient(self.bargain, self.reached)
        most = max(map(sum, outcomes(self.bargain)))
        figures = (self.reached is not None, efficient, joint, joint / most, len(self.moves))
        return Findings(dict(zip(MEASURES, map(float, figures), strict=True)))

    def _moves(self) -> tuple[str, ...]:
        """Return all moves that are legal now, in their one wording."""
        accepting = (ACCEPT,) if self.moves else ()
        return (*offers(self.bargain.pool, self.items), *accepting, WALK_AWAY)


def _rules(config: NegotiationConfig) -> str:
    first, last = config.items[0], config.items[-1]
    example = offer((1, *(0 for _ in config.items[1:])), config.items)
    answer_form = (
        "Your move is what you say. You may say anything, but the last sentence must be one of these alone: "
        f"`I accept.`, `I walk away.`, or `I take` with numbers and items, such as `I take 1 {first} and 2 {last}s.` "
        "or `I take nothing.`"
        if config.talk
        else f"Your move is `accept`, `walk away`, or `take` with a number for every kind, such as `{example}`."
    )
    discount = f" Each move from the third on multiplies what both get by {config.discount}." * (config.discount < 1)
    return (
        f"This is a negotiation for two about a pool of items of these kinds: {', '.join(config.items)}. What an item "
        "is worth to you, the other does not know, and to the other it may be worth something else; the whole pool is "
        f"worth {config.total} to each of you. You take turns to say what you would take of the pool; the other would "
        "get the rest. Who accepts the other's last offer ends the negotiation, and each of you gets what the items "
        f"are worth to it. Who walks away ends it with nothing for both, and so do {config.max_turns} moves without an "
        f"agreement.{discount} {answer_form} You are told the turn, the pool, what one item of each kind is worth to "
        "you, and what both have said."
    )
