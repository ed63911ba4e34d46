"""Figures of a tournament: the score of each player against each other player, ratings, and the Nash equilibrium."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from marl.core.statistics import normal_interval, wilson_interval
from marl.core.zero_sum import Mixture, nash_equilibrium
from marl.evaluation.cross_play import PairEpisodes, PairReturns, PlayerPair
from marl.evaluation.elo import EloRating, elo_ratings_with_intervals


@dataclass(frozen=True, slots=True)
class PairScore:
    """Score of one player against another, over all seats, with 95 % intervals; a bound may be infinite."""

    mean: float
    """Mean return of the player over all episodes, with the bounds `mean_low` and `mean_high` of its interval."""
    mean_low: float
    mean_high: float
    win: float
    """Share of episodes in which the player earned more than the mean over the other player's seats."""
    win_low: float
    win_high: float
    draw: float
    """Share of episodes with equal returns."""
    draw_low: float
    draw_high: float
    loss: float
    """Share of episodes in which the player earned less than the mean over the other player's seats."""
    loss_low: float
    loss_high: float

    @classmethod
    def from_episodes(cls, pair_episodes: PairEpisodes) -> PairScore:
        """Return the first player's score in a pair's episodes.

        Episodes from one start may be alike. The mean's interval is therefore the normal interval over starts, and the
        intervals of shares are Wilson's, with the number of starts as the number of trials.
        """
        start_means: list[float] = []
        outcomes: list[int] = []
        for episodes in pair_episodes:
            if episodes:
                start_means.append(fmean([first for first, _ in episodes]))
                outcomes += map(_outcome_sign, episodes)
        low, mean, high = normal_interval(start_means)
        shares: list[float] = []
        for outcome in (1, 0, -1):
            share = outcomes.count(outcome) / len(outcomes)
            share_low, share, share_high = wilson_interval(share * len(start_means), len(start_means))
            shares += (share, share_low, share_high)
        return cls(mean, low, high, *shares)


def _outcome_sign(pair_returns: PairReturns) -> int:
    """Return 1 if the first player of a pair won the episode, 0 for a draw, and -1 if it lost."""
    first, second = pair_returns
    return (first > second) - (first < second)


@dataclass(frozen=True)
class CrossPlayTable:
    """Results of a tournament: returns of all episodes, and scores and ratings computed from the returns."""

    names: Sequence[str]
    """Names of the players."""
    episodes_by_pair: Mapping[PlayerPair, PairEpisodes]
    """Pair of players -> returns of the pair's episodes."""
    zero_sum: bool
    """True if the game is zero-sum."""
    two_seats: bool
    """True if the game has two contested seats."""

    @cached_property
    def score_matrix(self) -> list[list[PairScore | None]]:
        """Score of each row's player against each column's player, or None for pairs that did not play."""
        numbers = range(len(self.names))
        cells: list[list[PairScore | None]] = []
        for row in numbers:
            cells.append([])
            for column in numbers:
                pair_episodes = self.episodes_by_pair.get((row, column))
                # In a game of two seats, (column, row) was played in the same episodes as (row, column).
                if pair_episodes is None and self.two_seats and (column, row) in self.episodes_by_pair:
                    pair_episodes = []
                    for episodes in self.episodes_by_pair[column, row]:
                        pair_episodes.append([(second, first) for first, second in episodes])
                cells[row].append(PairScore.from_episodes(pair_episodes) if pair_episodes is not None else None)
        return cells

    @property
    def no_ratings_reason(self) -> str | None:
        """Reason for which the game allows no Elo ratings, or None if it allows them."""
        if not self.two_seats:
            return "no ratings: the game has more than two seats, so an episode does not compare two players"
        return (
            None if self.zero_sum else "no ratings: the game is not zero-sum, so who is paid more may not play better"
        )

    @cached_property
    def ratings(self) -> list[EloRating]:
        """Elo rating of each player, with one draw added to each pair; empty if the game is not two-player zero-sum."""
        if self.no_ratings_reason:
            return []
        # points[s, i, j]: points that player i won against player j in the episodes from start s.
        points = np.zeros((max(map(len, self.episodes_by_pair.values())), len(self.names), len(self.names)))
        for (first, second), pair_episodes in self.episodes_by_pair.items():
            for start, episodes in enumerate(pair_episodes):
                won = math.fsum((1 + _outcome_sign(returns)) / 2 for returns in episodes)
                points[start, first, second], points[start, second, first] = won, len(episodes) - won
        return elo_ratings_with_intervals(points)

    @cached_property
    def nash_mixture(self) -> Mixture | None:
        """Probabilities of the players in a Nash equilibrium of the matrix of mean scores (Balduzzi et al. 2018, arXiv
        1806.02643), or None if the game is not a two-player zero-sum game."""
        if self.no_ratings_reason:
            return None
        payoffs: list[list[float]] = []
        for row in self.score_matrix:
            payoffs.append([cell.mean if cell else 0.0 for cell in row])
        return nash_equilibrium(payoffs).row

    def to_json_data(self) -> dict[str, Any]:
        """Return scores, ratings and equilibrium as JSON data, in which an infinite bound is null."""
        matrix: dict[str, list[list[float | None]]] = {}
        for name in PairScore.__dataclass_fields__:
            matrix[name] = []
            for row in self.score_matrix:
                matrix[name].append([])
                for cell in row:
                    score = asdict(cell)[name] if cell else math.nan
                    matrix[name][-1].append(score if math.isfinite(score) else None)
        figures: dict[str, Any] = {"players": list(self.names), "matrix": matrix}
        if self.no_ratings_reason:
            return figures | {"unrated": self.no_ratings_reason}
        figures["ratings"] = list(map(asdict, self.ratings))
        figures["equilibrium"] = None if self.nash_mixture is None else self.nash_mixture.tolist()
        return figures
