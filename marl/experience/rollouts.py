"""Fresh play: every step's deals are played with the weights as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl.protocols import Experience, ExperienceConfig, Simulator
from marl.types import Deal, Metrics

if TYPE_CHECKING:
    from marl.graph import Trajectory


class Rollouts(ExperienceConfig):
    """Plays each step's deals with the current weights."""

    kind: str = "rollouts"

    def build(self) -> Experience:
        return self

    def gather(self, deals: Sequence[Deal], simulator: Simulator) -> list[Trajectory]:
        return simulator.play(deals)

    def metrics(self) -> Metrics:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""
