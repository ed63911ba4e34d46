"""Choice of the game of each group of episodes in a run, by fixed weights or by learning progress."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from typing import Any, NamedTuple

from marl.core.seeds import hash_to_seed
from marl.scenario.games import GameMixSettings, ScenarioGame, game_shares
from marl.scenario.schema import Scenario

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
game/GAME/share | share of starts | share that the game gets in the next step (`schedule.mix: learning_progress`)
"""


class GameGroup(NamedTuple):
    """Game of one group of episodes in a step."""

    game: str
    """Name of the game, or "" if the run has only one game."""
    rotation: int
    """Number of seats by which the roles are shifted; it grows by 1 with every group of the same game."""


class GameMix:
    """Chooses the game of each group of a step.

    Checkpoints hold no learning progress: a resumed run computes it again from the rows of metrics.jsonl.
    """

    def __init__(self, scenario: Scenario) -> None:
        # Games with weight 0 are only evaluated.
        self._games = {name: game for name, game in scenario.games.items() if game.weight}
        self._mix = scenario.schedule.mix
        self._groups, self._seed = scenario.schedule.groups, scenario.schedule.seed
        self._progress = GameLearningProgress(self._games, self._mix)
        self._rota = FixedWeightGameSequence({name: Fraction(str(game.weight)) for name, game in self._games.items()})

    def __call__(self, step: int) -> list[GameGroup]:
        """Return the game of each group of `step`.

        The choice depends on the step and, with `by: learning_progress`, on the metrics observed so far.
        """
        if not self._games:
            return [GameGroup("", step * self._groups + group) for group in range(self._groups)]
        if self._mix.by == "weights":
            return self._rota.groups(step * self._groups, self._groups)
        # `learning_progress` uses systematic sampling: each game gets its expected number of groups, rounded.
        names, offset = list(self._games), hash_to_seed(self._seed, "mix", step) / 2**64
        bounds, counts = list(accumulate(self._progress.share_by_game.values())), Counter[str]()
        groups: list[GameGroup] = []
        for group in range(self._groups):
            point = (group + offset) / self._groups
            # `min` is needed, because rounding may leave the last bound below 1.
            name = names[min(bisect_right(bounds, point), len(names) - 1)]
            groups.append(GameGroup(name, step + counts[name]))
            counts[name] += 1
        return groups

    def update_from_step_metrics(self, step_metrics: Mapping[str, float]) -> None:
        """Update learning progress from a step's row of metrics.jsonl."""
        self._progress.update_from_step_metrics(step_metrics)

    def metrics(self) -> dict[str, float]:
        """Return the metrics `game/NAME/share`, the current share of each game; none if the shares are constant."""
        if not self._games or self._mix.by == "weights":
            return {}
        return {f"game/{name}/share": share for name, share in self._progress.share_by_game.items()}


class GameLearningProgress:
    """Learning progress: moving average of the change of each game's metric (arXiv 1707.00183, "Online")."""

    def __init__(self, games: Mapping[str, ScenarioGame], mix: GameMixSettings) -> None:
        self._mix, self._weights = mix, game_shares(games)
        self._metrics: dict[str, str] = {}
        """Game -> full name of the metric whose change is the game's progress."""
        for name, game in games.items():
            if metric := game.progress:
                is_evaluated, figure = metric.startswith("eval/"), metric.removeprefix("eval/")
                self._metrics[name] = f"eval/{name}/{figure}" if is_evaluated else f"game/{name}/{metric}"
        self._latest: dict[str, float] = {}
        """Game -> latest value of its metric."""
        self.averages: dict[str, float] = dict.fromkeys(games, 0.0)
        """Game -> moving average q of the changes, in units of the game's metric."""

    def update_from_step_metrics(self, step_metrics: Mapping[str, Any]) -> None:
        """Update the averages of all games whose metric is in `step_metrics`."""
        for name, metric in self._metrics.items():
            value = step_metrics.get(metric)
            if value is None or not math.isfinite(value):
                continue
            change = value - self._latest.get(name, value)
            self.averages[name] = self._mix.alpha * change + (1 - self._mix.alpha) * self.averages[name]
            self._latest[name] = value

    @property
    def share_by_game(self) -> dict[str, float]:
        """Game -> share of the groups: `floor` is divided by weights, the remainder by weights times |`averages`|."""
        progress = {name: weight * abs(self.averages[name]) for name, weight in self._weights.items()}
        total = sum(progress.values())
        if not total:
            return dict(self._weights)  # without progress in any game, the weights alone decide
        shares: dict[str, float] = {}
        for name, weight in self._weights.items():
            shares[name] = self._mix.floor * weight + (1 - self._mix.floor) * progress[name] / total
        return shares


class FixedWeightGameSequence:
    """Infinite sequence of games, in which each game's number of groups stays within 1 of its share at every length.

    Tijdeman's algorithm for the chairman assignment problem (Discrete Mathematics 32, 1980): of the games whose quota
    is far enough ahead of their count, the next group goes to the one that must have it soonest. Simpler divisions
    (largest remainders, stride scheduling, divisor methods) stray from the shares by 2 groups and more.
    """

    def __init__(self, weights: Mapping[str, Fraction]) -> None:
        scale = math.lcm(*(weight.denominator for weight in weights.values()))
        self._weights = {name: int(weight * scale) for name, weight in weights.items()}
        self._period = sum(self._weights.values())
        """Length after which all shares are whole numbers of groups, so that the sequence repeats."""
        self._counts = dict.fromkeys(weights, 0)
        self._prefix: list[GameGroup] = []
        """The start of the sequence, as far as it was asked for; at most one period."""

    def groups(self, first_index: int, count: int) -> list[GameGroup]:
        """Return `count` elements of the sequence from index `first_index` on."""
        groups: list[GameGroup] = []
        for index in range(first_index, first_index + count):
            repetition, position = divmod(index, self._period)
            while len(self._prefix) <= position:
                self._append_next_game()
            name, rotation = self._prefix[position]
            groups.append(GameGroup(name, repetition * self._weights[name] + rotation))
        return groups

    def _append_next_game(self) -> None:
        """Append the next game of the sequence to `_prefix`."""
        # Tijdeman's threshold for k games is 1 / (2k - 2). All quantities are multiplied by (2k - 2) * period.
        length, factor = len(self._prefix) + 1, max(2 * len(self._weights) - 2, 1)
        deadlines: dict[str, Fraction] = {}
        for name, weight in self._weights.items():
            shortfall = factor * (length * weight - self._counts[name] * self._period)
            if shortfall >= self._period or len(self._weights) == 1:
                deadlines[name] = Fraction((factor - 1) * self._period - shortfall, weight)
        # If deadlines are equal, the game that comes first in the scenario is chosen.
        chosen = min(deadlines, key=deadlines.__getitem__)
        self._prefix.append(GameGroup(chosen, self._counts[chosen]))
        self._counts[chosen] += 1
