"""The weight of the entropy bonus, fixed or steered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl.controllers import adapted_entropy
from marl.types import Metrics

if TYPE_CHECKING:
    from trainers.settings import EntropyControl


class Bonus:
    """What the entropy (nats a token) is multiplied by before it is taken from the loss."""

    def __init__(self, coefficient: float, control: EntropyControl | None) -> None:
        self._coefficient, self._control, self._wanted = coefficient, control, True
        self.ever = bool(coefficient) or control is not None
        """Whether there can be a bonus."""

    @property
    def coefficient(self) -> float:
        """0 while the entropy is over its target: not even a steered bonus is given then (as in TRL)."""
        return self._coefficient if self._wanted else 0.0

    def steer(self, entropy: float) -> Metrics:
        """Follow the entropy measured in an update."""
        if self._control is None:
            return {}
        to = self._control
        self._coefficient = adapted_entropy(self._coefficient, entropy, to.target, to.step, to.low, to.high)
        self._wanted = entropy <= to.target
        return {"coefficient_entropy": self.coefficient}

    def state_dict(self) -> dict[str, Any]:
        """Where steering stands."""
        return {"coefficient": self._coefficient, "wanted": self._wanted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it; a coefficient that is not steered is the scenario's."""
        if self._control is not None:
            self._coefficient, self._wanted = float(state["coefficient"]), bool(state["wanted"])
