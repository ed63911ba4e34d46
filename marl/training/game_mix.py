"""Division of a run's groups among its games, by fixed weights or by learning progress."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from marl.core.seeds import seed_of
from marl.scenario.games import GameMixSettings, ScenarioGame, game_shares
from marl.scenario.schema import Scenario


class GameGroup(NamedTuple):
    """Game of one group of a step."""

    game: str
    """Name of the game, or "" if the run has only one game."""
    rotation: int
    """Number of seats by which roles are rotated; it grows by 1 from group to group of the same game."""


class GameMix:
    """Chooses the game of each group of a step.

    Learning progress is computed from the rows of metrics.jsonl, which a resumed run reads again. It is therefore no
    part of checkpoints.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._games, self._mix = scenario.games, scenario.schedule.mix
        self._groups, self._seed = scenario.schedule.groups, scenario.schedule.seed
        self._progress = LearningProgress(self._games, self._mix)

    def __call__(self, step: int) -> list[GameGroup]:
        """Return the games of the groups of `step`.

        The result depends on the step, and with `by: learning_progress` on the progress so far.
        """
        if not self._games:
            return [GameGroup("", step * self._groups + group) for group in range(self._groups)]
        if self._mix.by == "learning_progress":
            return self._by_progress(step)
        weights = tuple((name, Fraction(played.weight)) for name, played in self._games.items())
        block, step_in_block = divmod(step, _steps_of_block(self._groups, weights))
        first = step_in_block * self._groups
        return list(_block(block, self._groups, weights)[first : first + self._groups])

    def observe(self, row: Mapping[str, float]) -> None:
        """Update learning progress from a step's row of metrics."""
        self._progress.observe(row)

    def metrics(self) -> dict[str, float]:
        """Return `game/NAME/share`, the current share of each game, or nothing if shares are constant."""
        if not self._games or self._mix.by == "weights":
            return {}
        return {f"game/{name}/share": share for name, share in self._progress.shares.items()}

    def _by_progress(self, step: int) -> list[GameGroup]:
        """Return games by systematic sampling: each game gets its expected number of groups, rounded up or down."""
        names, offset = list(self._games), seed_of(self._seed, "mix", step) / 2**64
        bounds, counts = list(accumulate(self._progress.shares.values())), Counter[str]()
        groups: list[GameGroup] = []
        for group in range(self._groups):
            point = (group + offset) / self._groups
            # Rounding may leave the last bound below 1, hence below the point.
            name = names[min(bisect_right(bounds, point), len(names) - 1)]
            groups.append(GameGroup(name, step + counts[name]))
            counts[name] += 1
        return groups


class LearningProgress:
    """Moving average of the changes of each game's metric (Matiisen et al. 2017, arXiv 1707.00183, "Online")."""

    def __init__(self, games: Mapping[str, ScenarioGame], mix: GameMixSettings) -> None:
        self._mix, self._weights = mix, game_shares(games)
        self._metrics: dict[str, str] = {}
        """Game -> full name of the metric whose change is its progress."""
        for name, game in games.items():
            if metric := game.progress:
                is_evaluated, figure = metric.startswith("eval/"), metric.removeprefix("eval/")
                self._metrics[name] = f"eval/{name}/{figure}" if is_evaluated else f"game/{name}/{metric}"
        self._latest: dict[str, float] = {}
        self.averages: dict[str, float] = dict.fromkeys(games, 0.0)
        """Game -> moving average q, in units of its metric."""

    def observe(self, row: Mapping[str, Any]) -> None:
        """Update the averages of the games whose metric is in `row`."""
        for name, metric in self._metrics.items():
            value = row.get(metric)
            if value is None or not math.isfinite(value):
                continue
            change = value - self._latest.get(name, value)
            self.averages[name] = self._mix.alpha * change + (1 - self._mix.alpha) * self.averages[name]
            self._latest[name] = value

    @property
    def shares(self) -> dict[str, float]:
        """Return game -> share. `floor` is divided by weights, the remainder by weights times |q|."""
        progress = {name: weight * abs(self.averages[name]) for name, weight in self._weights.items()}
        total = sum(progress.values())
        if not total:  # no game has changed yet
            return dict(self._weights)
        floor = self._mix.floor
        return {name: floor * weight + (1 - floor) * progress[name] / total for name, weight in self._weights.items()}


# --- fixed weights ---------------------------------------------------------------------------------------------------

Weights = tuple[tuple[str, Fraction], ...]


def _steps_of_block(groups: int, weights: Weights) -> int:
    """Return the number of steps of a block, in which every game gets at least one group."""
    numbers = [weight for _, weight in weights]
    return math.ceil(sum(numbers) / (groups * min(numbers)))


@lru_cache(maxsize=4)
def _block(block: int, groups: int, weights: Weights) -> tuple[GameGroup, ...]:
    """Return the games of all groups of a block of steps, with each game's groups spread evenly over the block.

    At the end of every block, all groups so far are divided by largest remainders. A game never loses a group by this,
    since it gets at least one group in every block.
    """
    size = groups * _steps_of_block(groups, weights)
    before = _largest_remainders(block * size, weights)
    after = _largest_remainders((block + 1) * size, weights)
    positions: list[tuple[Fraction, int, GameGroup]] = []
    for rank, (name, _) in enumerate(weights):
        count = after[name] - before[name]
        # The rank breaks ties between games, so that the order is the same in every process.
        positions += [(Fraction(2 * i + 1, 2 * count), rank, GameGroup(name, before[name] + i)) for i in range(count)]
    return tuple([group for _, _, group in sorted(positions)])


def _largest_remainders(seats: int, weights: Weights) -> dict[str, int]:
    """Return name -> number of `seats`: the quota rounded down, plus 1 for the largest remainders."""
    total = sum(weight for _, weight in weights)
    quotas = {name: seats * weight / total for name, weight in weights}
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    unassigned = seats - sum(counts.values())
    for name in sorted(counts, key=lambda name: counts[name] - quotas[name])[:unassigned]:
        counts[name] += 1
    return counts
