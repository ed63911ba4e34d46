"""Division of a run's starts among its games, by fixed weights or by learning progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from marl.scenario.games import Mix, PlayedGame, shares
from marl.scenario.schema import Scenario
from marl.seeds import seed_of


class Slot(NamedTuple):
    """The game of one group of a step."""

    game: str
    """Name; "" where a run has one game."""
    turn: int
    """Number by which roles change seats: it grows by 1 from group to group of the same game."""


class GameMix:
    """Says which game each group of a step plays.

    What it knows of learning progress follows from the rows of metrics.jsonl, so a resumed run reads them again.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._games, self._mix = scenario.games, scenario.schedule.mix
        self._groups, self._seed = scenario.schedule.groups, scenario.schedule.seed
        self._progress = LearningProgress(self._games, self._mix)

    def __call__(self, step: int) -> list[Slot]:
        """Return the game of each group of `step`: a function of the step, and of the progress so far if asked for."""
        if not self._games:
            return [Slot("", step * self._groups + group) for group in range(self._groups)]
        if self._mix.by == "learning_progress":
            return self._sampled(step)
        weights = tuple((name, Fraction(played.weight)) for name, played in self._games.items())
        block, place = divmod(step, _steps_of_block(self._groups, weights))
        slots = _block(block, self._groups, weights)
        return list(slots[place * self._groups : (place + 1) * self._groups])

    def take(self, row: Mapping[str, float]) -> None:
        """Learn from the metrics of a step how far each game's figure has changed."""
        self._progress.take(row)

    def metrics(self) -> dict[str, float]:
        """Return `game/NAME/share`, the share of the starts that each game gets now, if that changes."""
        if not self._games or self._mix.by == "weights":
            return {}
        return {f"game/{name}/share": share for name, share in self._progress.shares.items()}

    def _sampled(self, step: int) -> list[Slot]:
        """Return games by systematic sampling: in expectation each has its share, and never a group more or less."""
        names, offset = list(self._games), seed_of(self._seed, "mix", step) / 2**64
        bounds, counts = _cumulative(list(self._progress.shares.values())), Counter[str]()
        slots = []
        for group in range(self._groups):
            point = (group + offset) / self._groups
            name = next((name for name, bound in zip(names, bounds, strict=True) if point < bound), names[-1])
            slots.append(Slot(name, step + counts[name]))
            counts[name] += 1
        return slots


class LearningProgress:
    """Moving average of the changes of each game's figure (Matiisen et al. 2017, arXiv 1707.00183, "Online")."""

    def __init__(self, games: Mapping[str, PlayedGame], mix: Mix) -> None:
        self._mix, self._weights = mix, shares(games)
        self._figures = {name: _metric(name, played.progress) for name, played in games.items() if played.progress}
        self._before: dict[str, float] = {}
        self.averages: dict[str, float] = dict.fromkeys(games, 0.0)
        """Game -> q, in units of its figure."""

    def take(self, row: Mapping[str, Any]) -> None:
        """Update the averages of the games whose figure is in this row of metrics."""
        for name, figure in self._figures.items():
            value = row.get(figure)
            if value is None or not math.isfinite(value):
                continue
            change = value - self._before.get(name, value)
            self.averages[name] = self._mix.alpha * change + (1 - self._mix.alpha) * self.averages[name]
            self._before[name] = value

    @property
    def shares(self) -> dict[str, float]:
        """Return the share of each game: by weight times |q|, and `floor` of it by weight alone."""
        worth = {name: weight * abs(self.averages[name]) for name, weight in self._weights.items()}
        total = sum(worth.values())
        if not total:
            return dict(self._weights)
        floor = self._mix.floor
        return {name: floor * weight + (1 - floor) * worth[name] / total for name, weight in self._weights.items()}


def _metric(game: str, figure: str) -> str:
    """Return the full name of a figure of one game: eval/NAME/..., game/NAME/episode/..."""
    return f"eval/{game}/{figure.removeprefix('eval/')}" if figure.startswith("eval/") else f"game/{game}/{figure}"


# --- fixed weights ---------------------------------------------------------------------------------------------------

Weights = tuple[tuple[str, Fraction], ...]


def _steps_of_block(groups: int, weights: Weights) -> int:
    """Return the number of steps in which every game gets one group or more."""
    return math.ceil(sum(weight for _, weight in weights) / (groups * min(weight for _, weight in weights)))


@lru_cache(maxsize=4)
def _block(block: int, groups: int, weights: Weights) -> tuple[Slot, ...]:
    """Return the games of all groups in a block of steps, each game's spread evenly over the block.

    At every end of a block the groups so far are divided by largest remainders. Since every share of a block is one
    group or more, no game ever has to give one back.
    """
    size = groups * _steps_of_block(groups, weights)
    before, after = (_largest_remainders(number * size, weights) for number in (block, block + 1))
    places = [
        (Fraction(2 * i + 1, 2 * count), rank, Slot(name, before[name] + i))
        for rank, (name, _) in enumerate(weights)
        if (count := after[name] - before[name])
        for i in range(count)
    ]
    return tuple(slot for _, _, slot in sorted(places))


def _largest_remainders(seats: int, weights: Weights) -> dict[str, int]:
    """Return name -> its part of `seats`: its quota rounded down, and one more where the remainder is largest."""
    total = sum(weight for _, weight in weights)
    quotas = {name: seats * weight / total for name, weight in weights}
    parts = {name: math.floor(quota) for name, quota in quotas.items()}
    left = seats - sum(parts.values())
    for name in sorted(parts, key=lambda name: parts[name] - quotas[name])[:left]:
        parts[name] += 1
    return parts


def _cumulative(values: Sequence[float]) -> list[float]:
    return [sum(values[: i + 1]) for i in range(len(values))]
