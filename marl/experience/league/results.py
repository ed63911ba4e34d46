"""Results of a league: recent results of players against opponents, and payoffs between members of the pool."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.types import Deal


def return_margin(trajectory: Trajectory, role: str, opponent_role: str) -> float:
    """Return the mean return in an episode of the seats of `role`, minus the mean return of those of
    `opponent_role`."""
    episode_returns = trajectory.returns
    returns: dict[str, list[float]] = {role: [], opponent_role: []}
    for agent, seated_role in trajectory.deal.seats.items():
        if seated_role in returns:
            returns[seated_role].append(episode_returns.get(agent, 0.0))
    return fmean(returns[role]) - fmean(returns[opponent_role])


def payoff_matches(
    pair: tuple[str, str], roles: tuple[str, str], agents: Sequence[str], numbers: range, seed: int
) -> list[Deal]:
    """Return the deals of matches between two members of a population. Each start is played twice, with exchanged
    seats.

    Args:
        pair: names of the two members.
        roles: roles of the two members in the matches.
        agents: the two agents of the game.
        numbers: numbers of the matches; equal numbers are equal matches.
        seed: seed of the run.
    """
    deals: list[Deal] = []
    for number in numbers:
        name = f"league.{'.'.join(pair)}.{number}"
        seats = dict(zip(agents, roles[:: 1 if number % 2 else -1], strict=True))
        deals.append(Deal(name, name, hash_to_seed(seed, "league", *pair, number // 2), seats, "eval"))
    return deals


@dataclass(slots=True)
class DecayedGameResults:
    """Results of a player against one opponent, in which later games weigh more."""

    weight: float = 0.0
    """Sum of the weights of all games: 1 for the last game, and `decay` ** k for the k-th game before it."""
    points: float = 0.0
    """Weighted sum of points: 1 for a win, 0.5 for a draw."""
    games: int = 0
    """Number of games against this opponent."""

    @property
    def win_rate(self) -> float:
        """Return the weighted share of points that the player won, or 0.5 before the first game, as in AlphaStar."""
        return self.points / self.weight if self.weight else 0.5


class RecentGameResults:
    """Recent results of the players' policies, with their newest weights, against each opponent."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._records: dict[str, dict[str, DecayedGameResults]] = {}

    def add_game_result(self, policy: str, opponent: str, return_difference: float) -> None:
        """Add a game of `policy` against `opponent`: a win if the difference of returns is above 0, a draw if it is
        0."""
        record = self._records.setdefault(policy, {}).setdefault(opponent, DecayedGameResults())
        points = 0.5
        if return_difference > 0:
            points = 1.0
        elif return_difference < 0:
            points = 0.0
        record.weight, record.games = self._decay * record.weight + 1, record.games + 1
        record.points = self._decay * record.points + points

    def results_against(self, policy: str, opponents: Sequence[str]) -> list[DecayedGameResults]:
        """Return the results of `policy` against each of `opponents`, in the order of `opponents`."""
        records = self._records.get(policy, {})
        return [records.get(name) or DecayedGameResults() for name in opponents]

    def delete_results_of(self, policy: str) -> None:
        """Delete the results of a policy whose weights were reset."""
        self._records.pop(policy, None)

    def delete_results_except(self, opponents: Collection[str]) -> None:
        """Delete the results against every opponent that is not in `opponents`."""
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
            self._records[policy] = {opponent: DecayedGameResults(**games) for opponent, games in records.items()}


class MeanPayoffTable:
    """Mean payoffs between members of the pool in a two-player zero-sum game, with seats balanced."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, list[float]]] = {}
        """Row -> column (a later member) -> [number of games, sum of the row's payoffs]."""

    def add_game_result(self, row_policy: str, column_policy: str, row_payoff: float) -> None:
        """Add a game between two members, with the payoff of `row_policy`."""
        entry = self._sums.setdefault(row_policy, {}).setdefault(column_policy, [0, 0.0])
        entry[0] += 1
        entry[1] += row_payoff

    def pairs_without_games(self, members: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the (row, column) of each pair of members without games, pairs with the latest members first."""
        for column, row in combinations(reversed(members), 2):
            if column not in self._sums.get(row, {}):
                yield row, column

    def games_of(self, row_policy: str, column_policy: str) -> int:
        """Return the number of games between two members, given in the order of their addition."""
        return int(self._sums.get(row_policy, {}).get(column_policy, (0, 0.0))[0])

    def pairs_by_worth(self, probabilities: Mapping[str, float]) -> list[tuple[str, str]]:
        """Return the pairs of members in the support, by falling probability that they meet, divided by their games.

        `probabilities` maps each member, oldest first, to its probability under the meta-strategy. The variance of the
        mixture's estimated payoff falls fastest if such pairs play.
        """
        support = [name for name, probability in probabilities.items() if probability > 0]

        def worth(pair: tuple[str, str]) -> float:
            return probabilities[pair[0]] * probabilities[pair[1]] / max(1, self.games_of(*pair))

        return sorted(combinations(support, 2), key=worth, reverse=True)

    def payoff_matrix(self, members: Sequence[str]) -> list[list[float]]:
        """Return the mean payoff of each row's member against each column's member, or 0 for pairs without games."""

        def mean_payoff(row_policy: str, column_policy: str) -> float:
            games, total = self._sums.get(row_policy, {}).get(column_policy, (0, 0.0))
            return total / games if games else 0.0

        # A pair's games are stored under one of its two orders, so the mean of the other order is 0.
        return [[mean_payoff(row, column) - mean_payoff(column, row) for column in members] for row in members]

    def delete_results_except(self, members: Collection[str]) -> None:
        """Delete the payoffs of every member that is not in `members`."""
        sums: dict[str, dict[str, list[float]]] = {}
        for row, columns in self._sums.items():
            if row in members:
                sums[row] = {column: entry for column, entry in columns.items() if column in members}
        self._sums = sums

    def state_dict(self) -> dict[str, Any]:
        return deepcopy(self._sums)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = deepcopy(dict(state))
