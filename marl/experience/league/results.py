"""Results of a league: recent results of players against opponents, and payoffs between members of the pool."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from marl.core.graph import Trajectory


def margin(trajectory: Trajectory, role: str, other: str) -> float:
    """Return the mean return of the seats of `role` minus the mean return of the seats of `other` in an episode."""
    episode_returns = trajectory.returns
    returns: dict[str, list[float]] = {role: [], other: []}
    for agent, seated_role in trajectory.deal.seats.items():
        if seated_role in returns:
            returns[seated_role].append(episode_returns.get(agent, 0.0))
    return fmean(returns[role]) - fmean(returns[other])


@dataclass(slots=True)
class RecentGames:
    """Results against one opponent."""

    weight: float = 0.0
    """Sum of the weights of all games: 1 for the last game, and `decay` times less for each game before."""
    points: float = 0.0
    """Weighted sum of points: 1 for a win, 0.5 for a draw."""
    games: int = 0

    def add(self, margin: float, decay: float) -> None:
        """Add a game: a win if `margin` is above 0, a draw if it is 0."""
        points = 0.5
        if margin > 0:
            points = 1.0
        elif margin < 0:
            points = 0.0
        self.weight, self.games = decay * self.weight + 1, self.games + 1
        self.points = decay * self.points + points

    @property
    def win_rate(self) -> float:
        """Return the share of points, or 0.5 before the first game, as in AlphaStar."""
        return self.points / self.weight if self.weight else 0.5


class RecentResults:
    """Results of policies with their newest weights, against opponents by name."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._records: dict[str, dict[str, RecentGames]] = {}

    def add(self, policy: str, opponent: str, margin: float) -> None:
        """Add a game of `policy` against `opponent`."""
        self._records.setdefault(policy, {}).setdefault(opponent, RecentGames()).add(margin, self._decay)

    def against(self, policy: str, opponents: Sequence[str]) -> list[RecentGames]:
        """Return a policy's results against each of `opponents`, in order."""
        records = self._records.get(policy, {})
        return [records.get(name) or RecentGames() for name in opponents]

    def forget(self, policy: str) -> None:
        """Delete the results of a policy whose weights were reset."""
        self._records.pop(policy, None)

    def retain(self, opponents: Collection[str]) -> None:
        """Delete the results against all opponents that are not in `opponents`."""
        for records in self._records.values():
            for name in records.keys() - {*opponents}:
                del records[name]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for policy, records in self._records.items():
            state[policy] = {opponent: asdict(games) for opponent, games in records.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._records = {}
        for policy, records in state.items():
            self._records[policy] = {opponent: RecentGames(**games) for opponent, games in records.items()}


class Payoffs:
    """Mean payoffs between members of the pool in a two-player zero-sum game, with seats balanced."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[float]]] = {}
        """Row -> column (a later member) -> [number of games, sum of the row's payoffs]."""

    def add(self, row: str, column: str, payoff: float) -> None:
        """Add a game between two members, with the payoff of `row`."""
        entry = self._sums.setdefault(row, {}).setdefault(column, [0, 0.0])
        entry[0] += 1
        entry[1] += payoff

    def missing_pairs(self, members: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (row, column) of pairs without games, pairs with the latest members first."""
        for column, row in combinations(reversed(members), 2):
            if column not in self._sums.get(row, {}):
                yield row, column

    def matrix(self, members: Sequence[str]) -> list[list[float]]:
        """Return the mean payoff of each row's member against each column's member, or 0 for pairs without games."""

        def mean(row: str, column: str) -> float:
            games, total = self._sums.get(row, {}).get(column, (0, 0.0))
            return total / games if games else 0.0

        # Games are stored under the earlier member alone, so that one of the two means is 0.
        return [[mean(row, column) - mean(column, row) for column in members] for row in members]

    def retain(self, members: Collection[str]) -> None:
        """Delete the payoffs of all members that are not in `members`."""
        sums: dict[str, dict[str, list[float]]] = {}
        for row, columns in self._sums.items():
            if row in members:
                sums[row] = {column: entry for column, entry in columns.items() if column in members}
        self._sums = sums

    def state_dict(self) -> dict[str, Any]:
        return deepcopy(self._sums)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = deepcopy(dict(state))
