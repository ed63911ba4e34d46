"""Cross-play: every pair of players meets in all seats, over the same starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from statistics import fmean

from marl.core.seeds import hash_to_seed
from marl.core.types import Deal
from marl.protocols import Engine, RoleConfig
from marl.rollout.casting import RoleRequestBuilder
from marl.rollout.simulator import RolloutSimulator
from marl.scenario.schema import Scenario

MAX_LOADED_PLAYERS = 3
"""Maximum number of players whose weights are in memory at the same time."""
Engines = Mapping[str, Engine]
"""Policy -> its engine."""
PlayerPair = tuple[int, int]
"""Indices of two players: the first player takes one seat, the second player all other contested seats."""
PairReturns = tuple[float, float]
"""(return of a pair's first player, mean return over the second player's seats) in one episode."""
PairEpisodes = Sequence[Sequence[PairReturns]]
"""Returns of the episodes of one pair of players, as [start state][seat of the first player]. A start state with a
failed episode has an empty list."""


@dataclass(frozen=True, slots=True)
class TournamentPlayer:
    """A player of a tournament: a role for each seat, and the engines of the roles' policies."""

    name: str
    roles: Mapping[str, RoleConfig]
    """Agent -> role, for every agent of the game."""
    load_engines: Callable[[], Engines]
    """Function that loads the weights and returns the engines of the roles' policies."""
    identity: str
    """Hash of roles, settings and weights. Players with the same hash behave identically."""


@dataclass(frozen=True)
class Tournament:
    """Players of one game, and the start states from which all pairs of players meet."""

    scenario: Scenario
    """Scenario with a single game. Its seats that answer by rule, such as verifiers, are never contested."""
    entrants: Sequence[TournamentPlayer]
    starts: int
    """Number of start states."""
    seed: int
    """Seed of start states and sampling."""
    build_simulator: Callable[[Engines], RolloutSimulator]
    """Function that returns a simulator of the game with the given engines."""

    @cached_property
    def contested_seats(self) -> tuple[str, ...]:
        """Agents of the seats for which players compete, all seats without a rule-based policy."""
        scenario = self.scenario
        return tuple(agent for agent, role in scenario.seats.items() if role not in scenario.rule_based_roles)

    @property
    def pairs(self) -> list[PlayerPair]:
        """Return the pairs of players to be played, as indices into `entrants`.

        With two seats, a pair and its reverse have the same episodes. A player plays against itself, unless the game is
        zero-sum and the player's mean return is known to be 0.
        """
        has_reverse_pairs, zero_sum = len(self.contested_seats) > 2, self.scenario.game.is_zero_sum()
        pairs: list[PlayerPair] = []
        for first, second in product(range(len(self.entrants)), repeat=2):
            if first < second or (first > second and has_reverse_pairs) or (first == second and not zero_sum):
                pairs.append((first, second))
        return pairs

    def play_pairs(self, pairs: Collection[PlayerPair]) -> Iterator[tuple[PlayerPair, PairEpisodes]]:
        """Yield each pair with the returns of its episodes, in the order of `pairs_in_loading_order`."""
        engines: dict[int, Engines] = {}
        for pair in pairs_in_loading_order(pairs):
            for number in list(engines):
                # Engines stay loaded for the playing pair, and for the block with its lower-numbered player.
                if number not in pair and _memory_block_of_player(number) != _memory_block_of_player(min(pair)):
                    del engines[number]
            for number in pair:
                if number not in engines:
                    engines[number] = self.entrants[number].load_engines()
            yield pair, self._play_pair(pair, engines)

    def _play_pair(self, pair: PlayerPair, engines: Mapping[int, Engines]) -> PairEpisodes:
        """Play a pair of players from every start, once for each contested seat of the first player."""
        # Both players may use equal names, so their roles and policies are prefixed with "first" or "second".
        roles: dict[str, RoleConfig] = {}
        policies: dict[str, str] = {}
        marked_engines: dict[str, Engine] = {}
        for side, number in zip(("first", "second"), pair, strict=True):
            for agent, role in self.entrants[number].roles.items():
                roles[f"{side}:{agent}"] = role
                policies[f"{side}:{agent}"] = f"{role.policy}@{side}"
            for policy, engine in engines[number].items():
                marked_engines[f"{policy}@{side}"] = engine
        simulator = self.build_simulator(marked_engines).variant(RoleRequestBuilder(roles, self.seed))

        # Start states and seeds are the same for every pair of players.
        deals_by_start: list[list[Deal]] = []
        for start, options in enumerate(self.scenario.game.held_out_reset_options(self.starts) or [None] * self.starts):
            seed = hash_to_seed(self.seed, "cross_play", start)
            deals_by_start.append([])
            for first in self.contested_seats:
                name, seating = f"cross_play.{start}.{first}", dict[str, str]()
                for agent in self.scenario.seats:
                    side = "second" if agent in self.contested_seats and agent != first else "first"
                    seating[agent] = f"{side}:{agent}"
                deal = Deal(name, name, seed, seating, "eval", options=options, policies=policies)
                deals_by_start[-1].append(deal)

        trajectories = simulator.play(list(chain.from_iterable(deals_by_start)))
        returns = {trajectory.id: trajectory.returns for trajectory in trajectories}
        meeting: list[list[PairReturns]] = []
        for deals in deals_by_start:
            outcomes: list[PairReturns] = []
            # If the process of an episode failed, its start is left out, so that all seats have equally many starts.
            if returns.keys() >= {deal.episode for deal in deals}:
                for first, deal in zip(self.contested_seats, deals, strict=True):
                    earned = returns[deal.episode]
                    others = [earned.get(seat, 0.0) for seat in self.contested_seats if seat != first]
                    outcomes.append((earned.get(first, 0.0), fmean(others)))
            meeting.append(outcomes)
        return meeting


def pairs_in_loading_order(pairs: Iterable[PlayerPair]) -> list[PlayerPair]:
    """Return pairs in an order for which at most `MAX_LOADED_PLAYERS` players are in memory, and few are loaded.

    A block of `MAX_LOADED_PLAYERS` - 1 players stays in memory, while each player of a later block is loaded once to
    play against the whole block.
    """
    return sorted(pairs, key=lambda pair: (_memory_block_of_player(min(pair)), max(pair), min(pair)))


def _memory_block_of_player(player_index: int) -> int:
    """Return the index of a player's block. The players of one block stay in memory together."""
    return player_index // (MAX_LOADED_PLAYERS - 1)
