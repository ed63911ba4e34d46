"""Figures of a tournament: what each player earns against each other one, ratings, and the equilibrium of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from marl.core.statistics import normal, wilson
from marl.core.zero_sum import Mixture, nash_equilibrium
from marl.evaluation.cross_play import Pair, PairEpisodes, Returns
from marl.evaluation.elo import EloRating, elo_with_intervals


@dataclass(frozen=True, slots=True)
class CrossScore:
    """Score of one player against another, over all seats, with 95 % intervals; a bound may be infinite."""

    mean: float
    """Mean return."""
    mean_low: float
    mean_high: float
    win: float
    """Share of episodes in which it was paid more than the other, or than the mean of the other's seats."""
    win_low: float
    win_high: float
    draw: float
    draw_low: float
    draw_high: float
    loss: float
    loss_low: float
    loss_high: float

    @classmethod
    def of(cls, meeting: PairEpisodes) -> CrossScore:
        """Return the figures of a pair's episodes.

        Episodes from one start may go alike, so the mean's interval is the normal one over starts, and those of shares
        are Wilson's with as many trials as there are starts.
        """
        played = [episodes for episodes in meeting if episodes]
        low, mean, high = normal([fmean(first for first, _ in episodes) for episodes in played])
        outcomes = [_sign(returns) for episodes in played for returns in episodes]
        shares = [bound for sign in (1, 0, -1) for bound in _share(outcomes.count(sign) / len(outcomes), len(played))]
        return cls(mean, low, high, *shares)


def _sign(returns: Returns) -> int:
    first, second = returns
    return (first > second) - (first < second)


def _share(share: float, trials: int) -> tuple[float, float, float]:
    low, rate, high = wilson(share * trials, trials)
    return rate, low, high


@dataclass(frozen=True)
class CrossTable:
    """A tournament's players and what came of all their meetings."""

    names: Sequence[str]
    meetings: Mapping[Pair, PairEpisodes]
    zero_sum: bool
    two_seats: bool

    @cached_property
    def cells(self) -> list[list[CrossScore | None]]:
        """Return row player -> column player -> score of the row player; None for what was not played."""
        numbers = range(len(self.names))
        return [[self._cell(row, column) for column in numbers] for row in numbers]

    def _cell(self, row: int, column: int) -> CrossScore | None:
        meeting = self._meeting(row, column)
        return CrossScore.of(meeting) if meeting is not None else None

    def _meeting(self, row: int, column: int) -> PairEpisodes | None:
        if (row, column) in self.meetings or not self.two_seats or (column, row) not in self.meetings:
            return self.meetings.get((row, column))
        return [[(second, first) for first, second in episodes] for episodes in self.meetings[column, row]]

    @property
    def unrated(self) -> str | None:
        """Return the reason for missing ratings, or None if there are ratings."""
        if not self.two_seats:
            return "no ratings: the game has more than two seats, so an episode does not compare two players"
        return (
            None if self.zero_sum else "no ratings: the game is not zero-sum, so who is paid more may not play better"
        )

    @cached_property
    def ratings(self) -> list[EloRating]:
        """Return each player's Elo rating, with one drawn game added to each pair; empty if the game allows none."""
        return [] if self.unrated else elo_with_intervals(self._points())

    def _points(self) -> np.ndarray:
        """Return the points of i against j in the episodes from start s, as [s, i, j]."""
        points = np.zeros((max(map(len, self.meetings.values())), len(self.names), len(self.names)))
        for (first, second), meeting in self.meetings.items():
            for start, episodes in enumerate(meeting):
                won = math.fsum((1 + _sign(returns)) / 2 for returns in episodes)
                points[start, first, second], points[start, second, first] = won, len(episodes) - won
        return points

    @cached_property
    def equilibrium(self) -> Mixture | None:
        """Return the players' probabilities in a Nash equilibrium of the mean scores (Balduzzi et al. 2018, arXiv
        1806.02643), or None if the game is not zero-sum for two."""
        if self.unrated:
            return None
        return nash_equilibrium([[cell.mean if cell else 0.0 for cell in row] for row in self.cells]).row

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON data; an infinite bound is null."""
        names = list(CrossScore.__dataclass_fields__)
        matrix = {name: [[_finite(cell, name) for cell in row] for row in self.cells] for name in names}
        rated = {
            "ratings": [asdict(rating) for rating in self.ratings],
            "equilibrium": None if self.equilibrium is None else self.equilibrium.tolist(),
        }
        return {"players": list(self.names), "matrix": matrix, **({"unrated": self.unrated} if self.unrated else rated)}


def _finite(cell: CrossScore | None, name: str) -> float | None:
    value = asdict(cell)[name] if cell else math.nan
    return value if math.isfinite(value) else None
