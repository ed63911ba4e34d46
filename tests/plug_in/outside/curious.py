"""A credit rule from outside that remembers."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import PrivateAttr

from marl.core.types import Advantage, Credit
from marl.protocols import AssignConfig, Evidence


class Curious(AssignConfig):
    """What an agent is paid, and a bonus for moves that are seldom made: bonus / sqrt(times made so far)."""

    kind: str = "curious"
    bonus: float = 0.1
    _made: dict[str, int] = PrivateAttr(default_factory=dict)

    def build(self) -> Self:
        return self.model_copy(deep=True)  # every run counts for itself

    def __call__(self, evidence: Evidence) -> Credit:
        credit: Credit = {}
        for trajectory in evidence.trajectories:
            for turn in trajectory.turns:
                self._made[str(turn.action)] = times = self._made.get(str(turn.action), 0) + 1
                credit[turn.id] = Advantage(trajectory.returns.get(turn.agent, 0.0) + self.bonus / times**0.5)
        return credit

    def state_dict(self) -> dict[str, Any]:
        return {"made": dict(self._made)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._made = dict(state["made"])
