"""Fresh play, and functions that other experiences share with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl.config import nearest
from marl.protocols import Deals, Experience, ExperienceConfig, Simulator
from marl.types import Metrics

if TYPE_CHECKING:
    from marl.graph import Trajectory


class StatelessExperience:
    """Base of experiences that keep nothing from step to step."""

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing: there is no state."""


class Rollouts(StatelessExperience, ExperienceConfig):
    """Fresh play: each step's deals, played with the current weights."""

    kind: str = "rollouts"

    def build(self) -> Experience:
        return self

    def gather(self, step: int, deals: Deals, simulator: Simulator) -> list[Trajectory]:
        return simulator.play(deals(step))


def success_of(trajectory: Trajectory, measure: str) -> float:
    """Return a measure of the game.

    Raises:
        ValueError: if the game has no such measure; names those it has.
    """
    measures = trajectory.findings.measures
    if measure not in measures:
        raise ValueError(
            f"experience.success: the game has no measure {measure!r}; {nearest(measure, measures)} "
            f"(episode {trajectory.id}, which ended {trajectory.end!r})"
        )
    return measures[measure]


def mean_measures(trajectories: Sequence[Trajectory], prefix: str) -> Metrics:
    """Return the mean of each of the game's measures over the trajectories that have it."""
    names = sorted({name for trajectory in trajectories for name in trajectory.findings.measures})
    measures = [trajectory.findings.measures for trajectory in trajectories]
    return {f"{prefix}{name}": fmean([m[name] for m in measures if name in m]) for name in names}
