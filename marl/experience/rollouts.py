"""Experience by fresh play, and functions that other sources of training episodes use, too."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from marl.core.config import choices_hint
from marl.core.graph import Trajectory
from marl.core.seeds import hash_to_seed
from marl.core.state import StatelessPlugin
from marl.core.types import Metrics
from marl.protocols import DealsOfStep, Experience, ExperienceConfig, GameConfig, Simulator


class StatelessExperience(StatelessPlugin):
    """Base of experiences without a state."""


class Rollouts(StatelessExperience, ExperienceConfig):
    """Experience that plays the deals of each step with the current weights."""

    kind: str = "rollouts"

    def build(self) -> Experience:
        return self

    def gather(self, step: int, deals: DealsOfStep, simulator: Simulator) -> list[Trajectory]:
        return simulator.play(deals(step))


def measure_of_episode(trajectory: Trajectory, measure: str) -> float:
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


def unknown_measure_error(game: GameConfig | None, measure: str) -> str | None:
    """Return an error message for the field `success` if `game` is known to lack `measure`, else None.

    With several games (None), and with games that do not know their measures, the first episode shows it.
    """
    known = game.measure_names() if game else None
    if known is None or measure in known:
        return None
    return f"success: the game has no measure {measure!r}; {choices_hint(measure, known)}"


def mean_measures(trajectories: Sequence[Trajectory], metric_prefix: str) -> Metrics:
    """Return `metric_prefix` + name of a measure -> mean of the measure over the trajectories that have the measure."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.findings.measures.items():
            values.setdefault(name, []).append(value)
    return {f"{metric_prefix}{name}": fmean(values[name]) for name in sorted(values)}


class EpochSampler:
    """Order in which the rows of a data set, or recorded episodes, are used epoch after epoch."""

    def __init__(self, blocks: Sequence[range], *, shuffle: bool, seed: int) -> None:
        """Begin before the first row of the first epoch.

        Args:
            blocks: indices of the rows; rows of one block stay together.
            shuffle: True to shuffle the blocks in each epoch.
            seed: seed of the shuffles.
        """
        self._blocks, self._shuffle, self._seed = blocks, shuffle, seed
        self.count = sum(map(len, blocks))
        """Number of rows, which is the length of an epoch."""
        self.used = 0
        """Number of rows used so far, over all epochs."""

    def next_indices(self, count: int) -> list[int]:
        """Return the indices of the next `count` rows, and count these rows as used."""
        indices: list[int] = []
        first_epoch, skipped = divmod(self.used, self.count)
        epoch = first_epoch
        while len(indices) < skipped + count:
            blocks = list(self._blocks)
            if self._shuffle:
                random.Random(hash_to_seed(self._seed, "epoch", epoch)).shuffle(blocks)
            indices += chain.from_iterable(blocks)
            epoch += 1
        self.used += count
        return indices[skipped : skipped + count]
