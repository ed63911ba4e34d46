"""Results of a league: what players have won from their opponents lately, and members of the pool from each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marl.graph import Trajectory


def margin(trajectory: Trajectory, role: str, other: str) -> float:
    """Return how much more a seat of `role` was paid in an episode than one of `other`, on average."""
    seats, returns = trajectory.deal.seats, trajectory.returns
    ours, theirs = (
        fmean(returns.get(agent, 0.0) for agent, seated in seats.items() if seated == name) for name in (role, other)
    )
    return ours - theirs


@dataclass(slots=True)
class RecentGames:
    """Results against one opponent."""

    weight: float = 0.0
    """Sum of the weights of all games: 1 for the last, less for each before it."""
    points: float = 0.0
    """Weighted sum: 1 for a win, 0.5 for a draw."""
    games: int = 0

    def add(self, margin: float, decay: float) -> None:
        """Take in a game."""
        self.weight, self.games = decay * self.weight + 1, self.games + 1
        self.points = decay * self.points + (1.0 if margin > 0 else 0.0 if margin < 0 else 0.5)

    @property
    def win_rate(self) -> float:
        """Return the share of points; a half before the first game, as in AlphaStar."""
        return self.points / self.weight if self.weight else 0.5


class RecentResults:
    """Results of policies, as they are now, against opponents by name."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._records: dict[str, dict[str, RecentGames]] = {}

    def add(self, policy: str, opponent: str, margin: float) -> None:
        """Take in a game."""
        self._records.setdefault(policy, {}).setdefault(opponent, RecentGames()).add(margin, self._decay)

    def against(self, policy: str, opponents: Sequence[str]) -> list[RecentGames]:
        """Return a policy's results against these opponents, in order."""
        known = self._records.get(policy, {})
        return [known.get(name) or RecentGames() for name in opponents]

    def forget(self, policy: str) -> None:
        """Forget the results of a policy, which has begun anew."""
        self._records.pop(policy, None)

    def retain(self, opponents: Collection[str]) -> None:
        """Forget results against all other opponents."""
        for records in self._records.values():
            for name in records.keys() - {*opponents}:
                del records[name]

    def state_dict(self) -> dict[str, Any]:
        return {policy: {name: asdict(each) for name, each in of.items()} for policy, of in self._records.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._records = {p: {name: RecentGames(**each) for name, each in of.items()} for p, of in state.items()}


class Payoffs:
    """Mean returns of members of the pool against each other in a zero-sum game of two, seats balanced."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[float]]] = {}
        """Row -> column, later in the pool -> [games, sum of what the column paid the row]."""

    def add(self, row: str, column: str, paid: float) -> None:
        """Take in a game in which `column` paid `row`."""
        entry = self._sums.setdefault(row, {}).setdefault(column, [0, 0.0])
        entry[0] += 1
        entry[1] += paid

    def unknown(self, members: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (row, column) for pairs that have not played, those with the last members first."""
        for column, row in combinations(reversed(members), 2):
            if column not in self._sums.get(row, {}):
                yield row, column

    def matrix(self, members: Sequence[str]) -> list[list[float]]:
        """Return what each column's member pays each row's in a game; 0 where they have not played."""

        def paid(row: str, column: str) -> float:
            games, total = self._sums.get(row, {}).get(column, (0, 0.0))
            return total / games if games else 0.0

        return [[paid(row, column) - paid(column, row) for column in members] for row in members]

    def retain(self, members: Collection[str]) -> None:
        """Forget all others."""
        self._sums = {
            row: {column: entry for column, entry in of.items() if column in members}
            for row, of in self._sums.items()
            if row in members
        }

    def state_dict(self) -> dict[str, Any]:
        return {row: {column: [*entry] for column, entry in of.items()} for row, of in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = {row: {column: [*entry] for column, entry in of.items()} for row, of in state.items()}
