"""First-price auction: the highest sealed bid wins an item of private value, and is paid (Vickrey, 1961)."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import Any

from pydantic import Field

from marl.core.types import EpisodeMeasuresAndNewStarts
from marl.engines.scripted import Tabular
from marl.games.base import NextAgent, TextGameConfig, equiprobable_starts
from marl.games.matrix_games import SimultaneousGame
from marl.games.two_player import MAX_ENUMERATED_HISTORIES
from marl.protocols import EngineConfig, GameStart

BidStrategy = tuple[int, ...]
"""Strategy of a bidder: its bid for each private value, from value 1 on."""
MAX_SEARCHED_VALUE = 10
"""Maximum `max_value` of an auction whose equilibria are searched: there are 16,796 candidates for 10 values."""
_MEASURES = ("efficient", "revenue", "bid_error")


class FirstPriceAuctionConfig(TextGameConfig):
    """First-price auction. The winner is paid its value minus its bid; by default an illegal move costs 1."""

    kind: str = "first_price_auction"
    simultaneous = True
    players: int = Field(default=2, ge=2, le=6)
    """Number of bidders."""
    max_value: int = Field(default=7, ge=2, le=100)
    """Largest private value of the item. Each bidder's value is drawn uniformly from 1 to this number, independently of
    the values of others."""

    def build(self) -> FirstPriceAuction:
        return FirstPriceAuction(self)

    def all_start_states(self) -> tuple[GameStart, ...] | None:
        values = range(1, self.max_value + 1)
        # A bidder with value v has v legal bids, and may also bid illegally: v + 1 moves.
        histories = sum(value + 1 for value in values) ** self.players
        if histories > MAX_ENUMERATED_HISTORIES:
            return None
        deals = product(values, repeat=self.players)
        return equiprobable_starts("values", [" ".join(map(str, deal)) for deal in deals])

    def measure_names(self) -> Collection[str]:
        return _MEASURES

    def equilibrium_bid(self, item_value: int) -> float:
        """Return the bid of the symmetric equilibrium (n - 1) / n * value of n bidders with continuous values.

        Source: Vickrey, 1961, for values that are uniform on an interval from 0.
        """
        return (self.players - 1) / self.players * item_value

    def win_probability(self, bid: int, others_strategy: Collection[int]) -> float:
        """Return the probability that `bid` wins, if every other bidder follows the strategy `others_strategy`.

        A tie is won by each of its bidders with the same probability.
        """
        lower = sum(other < bid for other in others_strategy)
        equal = sum(other == bid for other in others_strategy)
        n, total = self.players, len(others_strategy) ** (self.players - 1)
        if not equal:
            return lower ** (n - 1) / total
        # The mean of 1 / (1 + number of ties) over binomial numbers of lower and equal bids, in closed form.
        return ((lower + equal) ** n - lower**n) / (n * equal * total)

    def regret(self, strategy: BidStrategy) -> float:
        """Return the maximum gain of a bidder, averaged over its values, if it alone deviates from `strategy`.

        The result is 0 in a symmetric equilibrium.
        """
        chances = [self.win_probability(bid, strategy) for bid in range(self.max_value)]
        gains: list[float] = []
        for value, bid in enumerate(strategy, 1):
            returns = [(value - other) * chances[other] for other in range(value)]
            gains.append(max(returns) - returns[bid])
        return fmean(gains)

    @cached_property
    def equilibria(self) -> tuple[BidStrategy, ...]:
        """All symmetric pure equilibria with bids that rise or stay with the value, or () if none was searched.

        The first equilibrium is nearest to `equilibrium_bid`.
        """
        if self.max_value > MAX_SEARCHED_VALUE:
            return ()
        found = [bids for bids in _nondecreasing_bid_strategies(self.max_value) if self.regret(bids) < 1e-9]
        return tuple(sorted(found, key=self.mean_distance_from_equilibrium_bid))

    def mean_distance_from_equilibrium_bid(self, strategy: BidStrategy) -> float:
        """Return the mean distance of `strategy` from the continuous equilibrium bid."""
        return fmean(abs(bid - self.equilibrium_bid(value)) for value, bid in enumerate(strategy, 1))

    def reference_players(self) -> Mapping[str, EngineConfig]:
        """Return `nash`, if a pure equilibrium was found, and `truthful`, which always makes its highest bid."""
        players = {"truthful": self._scripted_player_with_bid_strategy(tuple(range(self.max_value)))}
        return (
            {"nash": self._scripted_player_with_bid_strategy(self.equilibria[0])} | players
            if self.equilibria
            else players
        )

    def _scripted_player_with_bid_strategy(self, strategy: BidStrategy) -> Tabular:
        """Return the player that follows `strategy` in every seat."""
        table: dict[str, dict[str, float]] = {}
        for seat, (value, bid) in product(range(self.players), enumerate(strategy, 1)):
            table[f"player_{seat} value {value}"] = {str(bid): 1.0}
        return Tabular(table=table)


def _nondecreasing_bid_strategies(max_value: int) -> Iterator[BidStrategy]:
    """Yield every sequence of bids for the values from 1 to `max_value` that never falls and stays below the value."""
    sequences: list[BidStrategy] = [()]
    while sequences:
        bids = sequences.pop()
        if len(bids) == max_value:
            yield bids
            continue
        lowest = bids[-1] if bids else 0
        sequences += [(*bids, bid) for bid in range(lowest, len(bids) + 1)]


class FirstPriceAuction(SimultaneousGame):
    """First-price auction with OpenSpiel's rules, except that a tie pays each of its bidders the expected reward."""

    name = "first_price_auction"
    agent_prefix = "player"
    common_reward = False
    # A legal bid never loses, so any cost makes an illegal move worse than the lowest bid.
    default_penalty = 1.0
    reset_options = ("values",)

    def __init__(self, config: FirstPriceAuctionConfig) -> None:
        self.config = config
        menu = tuple(str(bid) for bid in range(config.max_value))
        super().__init__(config.illegal, [menu] * config.players)
        self.rules = (
            f"This is a sealed-bid auction of one item for {config.players} bidders. To each bidder the item has a "
            f"value of its own, drawn with equal chances from 1 to {config.max_value}, which the others do not know. "
            "All bid at the same time, a whole number from 0 to one less than their value, and none sees the bids of "
            "the others before. The highest bid wins the item: its bidder is paid the value minus the bid, and all "
            "others get nothing. Equal highest bids win with equal chances, and each is paid what it gets on average. "
            "You are told who you are and your value. Your move is your bid, such as `0`."
        )

    def start_new_game(self, rng: random.Random, options: Mapping[str, Any]) -> NextAgent:
        largest, players = self.config.max_value, self.config.players
        self.bids: tuple[int, ...] = ()
        """Bids of all bidders in seat order, or () before the end of the game."""
        if "values" not in options:
            self.values = tuple(rng.randint(1, largest) for _ in self.seats)
            return super().start_new_game(rng, options)
        given = options["values"]
        possible = {str(value): value for value in range(1, largest + 1)}
        words = given.split(" ") if isinstance(given, str) else []
        if len(words) != players or not {*words} <= {*possible}:
            raise ValueError(
                f"first_price_auction: option values: {given!r} is no deal; choices: {players} numbers from 1 to "
                f"{largest}, as in {' '.join(['1'] * players)!r}"
            )
        self.values = tuple(possible[word] for word in words)
        return super().start_new_game(rng, options)

    def start_state_key(self) -> str:
        return " ".join(map(str, self.values))

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self.moves_by_player[agent][: self.values[self.seats.index(agent)]]

    def describe_observation(self, agent: str) -> str:
        # The legal bids follow from the value, so the observation does not list them.
        return f"{agent} value {self.values[self.seats.index(agent)]}"

    information_state = describe_observation

    def payoff(self, joint_move: tuple[str, ...]) -> Mapping[str, float]:
        self.bids = tuple(map(int, joint_move))
        winners = [seat for seat, bid in enumerate(self.bids) if bid == max(self.bids)]
        rewards = dict.fromkeys(self.seats, 0.0)
        for seat in winners:
            rewards[self.seats[seat]] = (self.values[seat] - self.bids[seat]) / len(winners)
        return rewards

    def episode_measures(self) -> EpisodeMeasuresAndNewStarts:
        """Return the measures of the episode.

        `efficient`: probability that a bidder with the highest value gets the item; `revenue`: the winning bid;
        `bid_error`: mean distance of a bid from the continuous equilibrium bid. All are 0 after an illegal move.
        """
        if not self.bids:
            return EpisodeMeasuresAndNewStarts(dict.fromkeys(_MEASURES, 0.0))
        winners = [value for value, bid in zip(self.values, self.bids, strict=True) if bid == max(self.bids)]
        efficient = fmean(value == max(self.values) for value in winners)
        errors: list[float] = []
        for value, bid in zip(self.values, self.bids, strict=True):
            errors.append(abs(bid - self.config.equilibrium_bid(value)))
        figures = (efficient, max(self.bids), math.fsum(errors) / len(errors))
        return EpisodeMeasuresAndNewStarts(dict(zip(_MEASURES, map(float, figures), strict=True)))
