"""Cross-play: every pair of players meets in all seats, over the same starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import fmean

from marl.core.seeds import seed_of
from marl.core.types import Deal
from marl.protocols import Engine, RoleConfig
from marl.rollout.casting import RoleCasting
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario

MAX_LOADED_PLAYERS = 3
"""Most players whose weights are in memory at the same time."""
Engines = Mapping[str, Engine]
"""Policy -> its engine."""
Pair = tuple[int, int]
"""Numbers of two players: the first takes one seat, the second all the rest."""
Returns = tuple[float, float]
"""Return of the pair's first player in one episode, and the mean return of the second one's seats."""
PairEpisodes = Sequence[Sequence[Returns]]
"""Start -> the episodes of a pair from it, one for each seat of the first; empty if one of them could not be played."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A player of a tournament: a role for each seat, and the engines that speak for the roles' policies."""

    name: str
    roles: Mapping[str, RoleConfig]
    """Agent -> role, for every agent of the game."""
    engines: Callable[[], Engines]
    """Load the weights."""
    identity: str
    """Hash of roles, settings and weights: entrants with the same one play alike."""


@dataclass(frozen=True)
class Tournament:
    """Players of one game, and the starts from which all pairs of them play."""

    scenario: Scenario
    """One with a single game; its seats that answer by rule, such as verifiers, are never contested."""
    entrants: Sequence[Entrant]
    starts: int
    seed: int
    """Seed of starts and of what is sampled."""
    simulator: Callable[[Engines], RolloutSimulator]
    """Return a simulator of the game with these engines."""

    @cached_property
    def seats(self) -> tuple[str, ...]:
        """Return the agents of the contested seats, in which players alternate."""
        scenario = self.scenario
        return tuple(agent for agent, role in scenario.seats.items() if role not in scenario.rule_roles)

    @property
    def pairs(self) -> list[Pair]:
        """Return the pairs of players to be played, as indices into `entrants`.

        With two seats the episodes of a pair are those of the reverse one as well. What a player earns against itself
        is played unless that is known to be 0.
        """
        ordered, zero_sum = len(self.seats) > 2, self.scenario.game.is_zero_sum()
        return [
            (first, second)
            for first, second in product(range(len(self.entrants)), repeat=2)
            if first < second or (first > second and ordered) or (first == second and not zero_sum)
        ]

    def play(self, pairs: Collection[Pair]) -> Iterator[tuple[Pair, PairEpisodes]]:
        """Yield each of the pairs with what came of it, in an order that loads few weights (`in_order`)."""
        engines: dict[int, Engines] = {}
        for pair in in_order(pairs):
            for number in [number for number in engines if not _stays(number, pair)]:
                del engines[number]
            for number in pair:
                if number not in engines:
                    engines[number] = self.entrants[number].engines()
            yield pair, self._meet(pair, engines)

    def _meet(self, pair: Pair, engines: Mapping[int, Engines]) -> PairEpisodes:
        seated = dict(zip(("first", "second"), pair, strict=True))
        roles = {
            f"{side}:{agent}": role for side, n in seated.items() for agent, role in self.entrants[n].roles.items()
        }
        policies = {name: f"{role.policy}@{name.partition(':')[0]}" for name, role in roles.items()}
        speakers = {f"{policy}@{side}": each for side, n in seated.items() for policy, each in engines[n].items()}
        table = self.simulator(speakers).variant(RoleCasting(roles, self.seed))
        rounds = self._rounds(policies)
        played = {episode.id: episode.returns for episode in table.play([deal for each in rounds for deal in each])}
        return [self._episodes(deals, played) for deals in rounds]

    def _rounds(self, policies: Mapping[str, str]) -> list[list[Deal]]:
        """Return start -> a deal for each seat of the first player; but for the players, the same for every pair."""
        starts = self.scenario.game.held_out(self.starts) or [None] * self.starts
        rounds = []
        for start, options in enumerate(starts):
            names = [f"cross_play.{start}.{seat}" for seat in self.seats]
            seed, seatings = seed_of(self.seed, "cross_play", start), map(self._seating, self.seats)
            rounds.append(
                [
                    Deal(name, name, seed, seating, "eval", options=options, policies=policies)
                    for name, seating in zip(names, seatings, strict=True)
                ]
            )
        return rounds

    def _seating(self, first: str) -> dict[str, str]:
        """Return agent -> role with the first player in one seat and the second in all rest that are contested."""
        rest = {seat for seat in self.seats if seat != first}
        return {agent: f"{'second' if agent in rest else 'first'}:{agent}" for agent in self.scenario.seats}

    def _episodes(self, deals: Sequence[Deal], played: Mapping[str, Mapping[str, float]]) -> list[Returns]:
        """Return the outcomes of the episodes from one start, or [] if one is missing because its process failed."""
        if not all(deal.episode in played for deal in deals):
            return []
        return [self._returns(played[deal.episode], seat) for deal, seat in zip(deals, self.seats, strict=True)]

    def _returns(self, returns: Mapping[str, float], first: str) -> Returns:
        return returns.get(first, 0.0), fmean(returns.get(seat, 0.0) for seat in self.seats if seat != first)


def in_order(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs in an order for which at most `HELD` players are in memory, and few are loaded.

    A block of all but one stays there, and every later player comes once to play against the whole block.
    """
    return sorted(pairs, key=lambda pair: (min(pair) // (MAX_LOADED_PLAYERS - 1), max(pair), min(pair)))


def _stays(number: int, pair: Pair) -> bool:
    """Return True if a player stays in memory while a pair plays: one of the two, or of the lower one's block."""
    return number in pair or number // (MAX_LOADED_PLAYERS - 1) == min(pair) // (MAX_LOADED_PLAYERS - 1)
