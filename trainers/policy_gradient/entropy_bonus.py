"""Entropy bonus of policy gradients, with a fixed or steered coefficient."""

from collections.abc import Mapping
from typing import Any

from marl.core.statistics import adapted_entropy
from marl.core.types import Metrics
from marl.trainers.policy_gradient.options import EntropyControl


class EntropyBonus:
    """Coefficient of the entropy (nats a token) that is subtracted from the loss, fixed or steered."""

    def __init__(self, coefficient: float, control: EntropyControl | None) -> None:
        self._coefficient, self._control, self._is_on = coefficient, control, True

    @property
    def coefficient(self) -> float:
        """The coefficient; 0 while a steered entropy is over its target (as in TRL)."""
        return self._coefficient if self._is_on else 0.0

    def steer(self, entropy: float) -> Metrics:
        """Adapt the coefficient to the `entropy` measured in an update; return the new coefficient as a metric."""
        if (control := self._control) is None:
            return {}
        self._coefficient = adapted_entropy(
            self._coefficient, entropy, control.target, control.step, control.low, control.high
        )
        self._is_on = entropy <= control.target
        return {"coefficient_entropy": self.coefficient}

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self._coefficient, "wanted": self._is_on}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a steered coefficient; a fixed one stays the scenario's."""
        if self._control is not None:
            self._coefficient, self._is_on = float(state["coefficient"]), bool(state["wanted"])
