"""Negotiation about a pool of items with private values ("Deal or No Deal", Lewis et al., arXiv 1706.05125).

A move is an offer in a fixed wording or, with `talk`, any text ending in a sentence with such a move. OpenSpiel's
`bargaining` has the same rules, apart from walking away.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import Field, model_validator

from marl.core.config import shorten
from marl.core.types import Findings
from marl.games.base import TextGame, TextGameConfig
from marl.games.negotiation_terms import (
    ACCEPT,
    WALK_AWAY,
    Bargain,
    bargains,
    format_offer,
    is_efficient,
    offers,
    outcomes,
    parse_offer,
    read_move,
)
from marl.games.two_player import AGENTS
from marl.protocols import GameStart

MEASURES = ("agreement", "pareto_efficient", "joint_value", "joint_share", "turns")
MAX_ENUMERATED_HISTORIES = 50_000
"""Approximate maximum number of histories of a game whose deals are exported for exact evaluation."""


class NegotiationConfig(TextGameConfig):
    """Negotiation about the division of items with private values (general-sum).

    An agreement pays each agent the private value of its items, no agreement pays 0, and by default an illegal move
    costs 1.
    """

    kind: str = "negotiation"
    items: tuple[str, ...] = Field(default=("book", "hat", "ball"), min_length=2, max_length=3)
    """Names of the two or three kinds of items, in lower case and in the singular."""
    pool: tuple[int, int] = (5, 7)
    """Smallest and largest total number of items; the pool holds at least one item of each kind."""
    total: int = Field(default=10, ge=2, le=12)
    """Value of the full pool to each agent. All bargains described by Lewis et al. are equally likely."""
    max_turns: int = Field(default=10, ge=2, le=100)
    """Maximum number of moves of both agents together; then the negotiation ends without an agreement."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Factor on the payoffs of an agreement for each move from the third on."""
    talk: bool = False
    """True: a move is any text whose last sentence accepts, walks away or makes an offer; any other text is an illegal
    move. False: offers have a fixed wording (`take 1 book 0 hat 2 ball`), and all possible offers are listed as legal
    moves."""

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
        """Text of a bargain -> bargain, for all bargains of the game."""
        return bargains(len(self.items), self.pool, self.total)

    def build(self) -> NegotiationGame:
        return NegotiationGame(self)

    def starts(self) -> tuple[GameStart, ...] | None:
        moves = (len(offers(bargain.pool, self.items)) + 2 for bargain in self.bargains.values())
        if self.talk or sum(count**self.max_turns for count in moves) > MAX_ENUMERATED_HISTORIES:
            return None
        return tuple(GameStart(1 / len(self.bargains), {"bargain": text}) for text in self.bargains)

    def measure_names(self) -> Collection[str]:
        return MEASURES


class NegotiationGame(TextGame):
    """Negotiation for two; `player_0` moves first. An agent sees the pool, its own values and all moves so far."""

    name = "negotiation"
    default_penalty = 1.0  # no agreement pays 0, so that breaking the rules is worse than walking away
    reset_options = ("bargain",)

    def __init__(self, config: NegotiationConfig) -> None:
        self.config, self.items = config, config.items
        self.rules = _rules(config)
        # A pool holds at least one item of each other kind, which bounds the items of one kind.
        largest = config.pool[1] - len(self.items) + 1
        listed = offers((largest,) * len(self.items), self.items)
        super().__init__(AGENTS, config.illegal, None if config.talk else (*listed, ACCEPT, WALK_AWAY))

    def deal(self, rng: random.Random, options: Mapping[str, Any]) -> str:
        bargains = self.config.bargains
        key = options["bargain"] if "bargain" in options else rng.choice(tuple(bargains))
        if key not in bargains:
            raise ValueError(
                f"negotiation: option bargain: {shorten(repr(key))} is none of this game's {len(bargains)}; choices: "
                f"the pool / what one item is worth to player_0 / to player_1, such as {next(iter(bargains))!r}"
            )
        self.bargain = bargains[key]
        self.moves: tuple[str, ...] = ()
        """Moves so far, in the fixed wording of `format_offer`."""
        self.conversation: tuple[str, ...] = ()
        """Full texts of the moves so far."""
        self.reached: tuple[int, int] | None = None
        """Undiscounted values of the agreement to both agents, or None without an agreement."""
        return AGENTS[0]

    def start_key(self) -> str:
        return str(self.bargain)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        return None if self.config.talk else self._moves()

    def is_legal(self, action: str) -> bool:
        return (read_move(action, self.items) in self._moves()) if self.config.talk else super().is_legal(action)

    def describe(self, agent: str) -> str:
        """Return the pool, the agent's own values and the conversation; this text is also the information state."""
        me = AGENTS.index(agent)
        turn = min(len(self.moves) + 1, self.config.max_turns)
        pool = " ".join(f"{count} {item}" for count, item in zip(self.bargain.pool, self.items, strict=True))
        values = " ".join(f"{item} {value}" for item, value in zip(self.items, self.bargain.values[me], strict=True))
        lines = [f"{('you', 'they')[(index + me) % 2]} : {text}" for index, text in enumerate(self.conversation)]
        return "\n".join([f"turn {turn} of {self.config.max_turns} . pool {pool} . worth to you {values}", *lines])

    def information_state(self, agent: str) -> str:
        return self.describe(agent)

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return a few random moves, each after a remark without information about private values."""
        if not self.config.talk:
            return ()
        draw, moves = self.rng.choice, self._moves()
        remarks = ("", "let us be fair. ", f"I like every {draw(self.items)}. ", f"you may like a {draw(self.items)}. ")
        chosen = [draw(moves), draw(moves)]
        if ACCEPT in moves:
            chosen.append(ACCEPT)
        return tuple(f"{draw(remarks)}I {move}." for move in chosen)

    def apply_action(self, action: str) -> str | Mapping[str, float]:
        mover = AGENTS.index(self.agent_selection)
        move = (read_move(action, self.items) or "") if self.config.talk else action
        if move == ACCEPT:
            self.reached = self.bargain.payoffs(1 - mover, parse_offer(self.moves[-1]))
        self.moves, self.conversation = (*self.moves, move), (*self.conversation, " ".join(action.split()))
        if self.reached:
            factor = self.config.discount ** max(0, len(self.moves) - 2)
            return {agent: value * factor for agent, value in zip(AGENTS, self.reached, strict=True)}
        if move == WALK_AWAY or len(self.moves) == self.config.max_turns:
            return dict.fromkeys(AGENTS, 0.0)
        return AGENTS[1 - mover]

    def findings(self) -> Findings:
        """Return the measures of the episode.

        `agreement`: 1 after an agreement; `pareto_efficient`: 1 after a Pareto efficient agreement; `joint_value`: sum
        of both agents' undiscounted values; `joint_share`: `joint_value` as a share of the best division's joint value;
        `turns`: number of moves.
        """
        joint = sum(self.reached or (0,))
        efficient = self.reached is not None and is_efficient(self.bargain, self.reached)
        best_joint = max(map(sum, outcomes(self.bargain)))
        figures = (self.reached is not None, efficient, joint, joint / best_joint, len(self.moves))
        return Findings(dict(zip(MEASURES, map(float, figures), strict=True)))

    def _moves(self) -> tuple[str, ...]:
        """Return the legal moves in their fixed wording."""
        accepting = (ACCEPT,) if self.moves else ()
        return (*offers(self.bargain.pool, self.items), *accepting, WALK_AWAY)


def _rules(config: NegotiationConfig) -> str:
    """Return the rules of the game in words."""
    first, last = config.items[0], config.items[-1]
    example = format_offer((1, *(0 for _ in config.items[1:])), config.items)
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
