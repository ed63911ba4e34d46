"""Negotiation about a pool of items with private values ("Deal or No Deal", Lewis et al., arXiv 1706.05125).

A move is an offer in a fixed wording or, with `talk`, any text whose last sentence makes a move. OpenSpiel's
`bargaining` has the same rules, except that no player can walk away.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import Field, model_validator

from marl.core.config import shorten
from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.games.base import FinalRewards, NextAgent, TextGame, TextGameConfig, equiprobable_starts
from marl.games.negotiation_terms import (
    ACCEPT,
    WALK_AWAY,
    BargainingProblem,
    all_offer_texts,
    enumerate_bargaining_problems,
    format_offer,
    is_pareto_efficient,
    parse_move,
    parse_offer,
    possible_payoffs,
)
from marl.games.two_player import AGENTS
from marl.protocols import GameStart

_MEASURES = ("agreement", "pareto_efficient", "joint_value", "joint_share", "turns")
MAX_ENUMERATED_HISTORIES = 50_000
"""Approximate maximum number of histories of a game whose start states are listed for enumeration."""


class NegotiationConfig(TextGameConfig):
    """Negotiation about the division of items with private values (general-sum).

    An agreement pays each agent the private value of its items, no agreement pays 0, and by default an illegal move
    costs 1.
    """

    kind: str = "negotiation"
    items: tuple[str, ...] = Field(default=("book", "hat", "ball"), min_length=2, max_length=3)
    """Names of the two or three kinds of items, in lower case and in the singular."""
    pool: tuple[int, int] = (5, 7)
    """Smallest and largest number of items in the pool, which holds at least one item of each kind."""
    total: int = Field(default=10, ge=2, le=12)
    """Value of the full pool to each agent. All bargains of the paper with this value are equally likely."""
    max_turns: int = Field(default=10, ge=2, le=100)
    """Maximum number of moves of both agents together; then the negotiation ends without an agreement."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Factor by which each move from the third on multiplies the payoffs of an agreement."""
    talk: bool = False
    """True: a move is any text whose last sentence accepts, walks away or makes an offer; any other text is an illegal
    move. False: offers have a fixed wording (`take 1 book 0 hat 2 ball`), and all possible offers are listed as legal
    moves."""

    @model_validator(mode="after")
    def _check_items_and_pool(self) -> Self:
        for item in self.items:
            if not (item.isascii() and item.isalpha() and item.islower()) or self.items.count(item) > 1:
                raise ValueError(f"items: {item!r} is no name of a kind; choices: different words in small letters")
        low, high = self.pool
        if not len(self.items) <= low <= high <= 8:
            bounds = f"[low, high] with {len(self.items)} <= low <= high <= 8"
            raise ValueError(f"pool: {list(self.pool)} is no range; choices: {bounds}, one item of each kind at least")
        if not self.bargaining_problems:
            raise ValueError(f"total: no pool of {low} to {high} items can be worth {self.total} to both; raise total")
        return self

    @cached_property
    def bargaining_problems(self) -> Mapping[str, BargainingProblem]:
        """Text -> bargain (pool and private values), for all bargains that the game can deal."""
        return enumerate_bargaining_problems(len(self.items), self.pool, self.total)

    def build(self) -> NegotiationGame:
        return NegotiationGame(self)

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        histories = 0
        for bargain in self.bargaining_problems.values():
            # The 2 moves that are no offers are accepting and walking away.
            histories += (len(all_offer_texts(bargain.pool, self.items)) + 2) ** self.max_turns
        if self.talk or histories > MAX_ENUMERATED_HISTORIES:
            return None
        return equiprobable_starts("bargain", self.bargaining_problems)

    def measure_names(self) -> Collection[str]:
        return _MEASURES


class NegotiationGame(TextGame):
    """Negotiation for two; `player_0` moves first. An agent sees the pool, its own values and all moves so far."""

    name = "negotiation"
    # No agreement pays 0, so that an illegal move is worse than walking away.
    default_penalty = 1.0
    reset_options = ("bargain",)

    def __init__(self, config: NegotiationConfig) -> None:
        self.config, self.items = config, config.items
        first, last = config.items[0], config.items[-1]
        example = format_offer((1, *(0 for _ in config.items[1:])), config.items)
        answer_form = (
            "Your move is what you say. You may say anything, but the last sentence must be one of these alone: "
            "`I accept.`, `I walk away.`, or `I take` with numbers and items, such as "
            f"`I take 1 {first} and 2 {last}s.` or `I take nothing.`"
            if config.talk
            else f"Your move is `accept`, `walk away`, or `take` with a number for every kind, such as `{example}`."
        )
        discount = f" Each move from the third on multiplies what both get by {config.discount}."
        discount *= config.discount < 1
        self.rules = (
            f"This is a negotiation for two about a pool of items of these kinds: {', '.join(config.items)}. What an "
            "item is worth to you, the other does not know, and to the other it may be worth something else; the whole "
            f"pool is worth {config.total} to each of you. You take turns to say what you would take of the pool; the "
            "other would get the rest. Who accepts the other's last offer ends the negotiation, and each of you gets "
            "what the items are worth to it. Who walks away ends it with nothing for both, and so do "
            f"{config.max_turns} moves without an agreement.{discount} {answer_form} You are told the turn, the pool, "
            "what one item of each kind is worth to you, and what both have said."
        )
        # A pool holds at least one item of every kind, which limits the number of items of one kind.
        largest = config.pool[1] - len(self.items) + 1
        listed = all_offer_texts((largest,) * len(self.items), self.items)
        super().__init__(AGENTS, config.illegal, None if config.talk else (*listed, ACCEPT, WALK_AWAY))

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        problems = self.config.bargaining_problems
        key = options["bargain"] if "bargain" in options else rng.choice(tuple(problems))
        if key not in problems:
            raise ValueError(
                f"negotiation: option bargain: {shorten(repr(key))} is none of this game's {len(problems)}; choices: "
                f"the pool / what one item is worth to player_0 / to player_1, such as {next(iter(problems))!r}"
            )
        self.bargain = problems[key]
        self.moves: tuple[str, ...] = ()
        """Moves of both agents so far, in the fixed wording of `format_offer`."""
        self.conversation: tuple[str, ...] = ()
        """Full text of each move so far, with all remarks around the offer."""
        self.reached: tuple[int, int] | None = None
        """Undiscounted values of the agreement to `player_0` and `player_1`, or None before an agreement."""
        return AGENTS[0]

    def start_state_key(self) -> str:
        return str(self.bargain)

    def legal_actions(self, agent: str) -> tuple[str, ...] | None:
        return None if self.config.talk else self._possible_moves_in_fixed_wording()

    def is_legal(self, action: str) -> bool:
        return (
            (parse_move(action, self.items) in self._possible_moves_in_fixed_wording())
            if self.config.talk
            else super().is_legal(action)
        )

    def describe_observation(self, agent: str) -> str:
        """Return the turn, the pool, the values of `agent` and the conversation; also the agent's information state."""
        me = AGENTS.index(agent)
        turn = min(len(self.moves) + 1, self.config.max_turns)
        pool = " ".join(f"{count} {item}" for count, item in zip(self.bargain.pool, self.items, strict=True))
        values = " ".join(f"{item} {value}" for item, value in zip(self.items, self.bargain.values[me], strict=True))
        lines = [f"{('you', 'they')[(index + me) % 2]} : {text}" for index, text in enumerate(self.conversation)]
        return "\n".join([f"turn {turn} of {self.config.max_turns} . pool {pool} . worth to you {values}", *lines])

    information_state = describe_observation

    def example_actions(self, agent: str) -> tuple[str, ...]:
        """Return a few random moves, each after a random remark that reveals no private values."""
        if not self.config.talk:
            return ()
        draw, moves = self.rng.choice, self._possible_moves_in_fixed_wording()
        remarks = ("", "let us be fair. ", f"I like every {draw(self.items)}. ", f"you may like a {draw(self.items)}. ")
        chosen = [draw(moves), draw(moves)]
        if ACCEPT in moves:
            chosen.append(ACCEPT)
        return tuple(f"{draw(remarks)}I {move}." for move in chosen)

    def apply_action(self, action: str) -> NextAgent | FinalRewards:
        mover = AGENTS.index(self.agent_selection)
        move = (parse_move(action, self.items) or "") if self.config.talk else action
        if move == ACCEPT:
            self.reached = self.bargain.payoffs_of_offer(1 - mover, parse_offer(self.moves[-1]))
        self.moves, self.conversation = (*self.moves, move), (*self.conversation, " ".join(action.split()))
        if self.reached:
            factor = self.config.discount ** max(0, len(self.moves) - 2)
            return {agent: value * factor for agent, value in zip(AGENTS, self.reached, strict=True)}
        if move == WALK_AWAY or len(self.moves) == self.config.max_turns:
            return dict.fromkeys(AGENTS, 0.0)
        return AGENTS[1 - mover]

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the episode.

        `agreement`: 1 after an agreement; `pareto_efficient`: 1 after a Pareto efficient agreement; `joint_value`: sum
        of both agents' undiscounted values; `joint_share`: `joint_value` divided by its maximum; `turns`: number of
        moves of both agents.
        """
        joint = sum(self.reached or (0,))
        efficient = self.reached is not None and is_pareto_efficient(self.bargain, self.reached)
        best_joint = max(map(sum, possible_payoffs(self.bargain)))
        figures = (self.reached is not None, efficient, joint, joint / best_joint, len(self.moves))
        return EpisodeMeasuresAndNewStarts(dict(zip(_MEASURES, map(float, figures), strict=True)))

    def _possible_moves_in_fixed_wording(self) -> tuple[str, ...]:
        """Return the moves that are possible now, in their fixed wording."""
        accepting = (ACCEPT,) if self.moves else ()
        return (*all_offer_texts(self.bargain.pool, self.items), *accepting, WALK_AWAY)
