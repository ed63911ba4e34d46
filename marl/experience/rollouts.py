"""Fresh play, and functions shared by several experiences."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import seed_of
from marl.core.types import Metrics
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator


class StatelessExperience:
    """Base of experiences without state."""

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: there is no state."""


class Rollouts(StatelessExperience, ExperienceConfig):
    """Fresh play: the deals of each step are played with the current weights."""

    kind: str = "rollouts"

    def build(self) -> Experience:
        return self

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        return simulator.play(deals(step))


def success_of(trajectory: Trajectory, measure: str) -> float:
    """Return the value of one of the game's measures in an episode.

    Raises:
        ValueError: if the game has no such measure; names the measures of the game.
    """
    measures = trajectory.findings.measures
    if measure not in measures:
        raise ValueError(
            f"experience.success: the game has no measure {measure!r}; {choices_hint(measure, measures)} "
            f"(episode {trajectory.id}, which ended {trajectory.end!r})"
        )
    return measures[measure]


def mean_measures(trajectories: Sequence[Trajectory], prefix: str) -> Metrics:
    """Return `{prefix}{name}` -> mean of a measure over the trajectories with this measure."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.findings.measures.items():
            values.setdefault(name, []).append(value)
    return {f"{prefix}{name}": fmean(values[name]) for name in sorted(values)}


class EpochOrder:
    """Order in which recorded items are taken, epoch after epoch, and the number of items taken so far."""

    def __init__(self, blocks: Sequence[range], *, shuffle: bool, seed: int) -> None:
        """Start before the first item.

        Args:
            blocks: indices of the items; items of one block stay together.
            shuffle: shuffle the blocks in each epoch.
            seed: seed of the shuffles.
        """
        self._blocks, self._shuffle, self._seed = blocks, shuffle, seed
        self.count = sum(map(len, blocks))
        """Number of items of an epoch."""
        self.used = 0

    def take(self, count: int) -> list[int]:
        """Return the indices of the next `count` items."""
        orders: dict[int, list[int]] = {}
        indices: list[int] = []
        for number in range(self.used, self.used + count):
            epoch, position = divmod(number, self.count)
            if epoch not in orders:
                orders[epoch] = self._order(epoch)
            indices.append(orders[epoch][position])
        self.used += count
        return indices

    def _order(self, epoch: int) -> list[int]:
        blocks = list(self._blocks)
        if self._shuffle:
            random.Random(seed_of(self._seed, "epoch", epoch)).shuffle(blocks)
        return [index for block in blocks for index in block]
