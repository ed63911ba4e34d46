"""Entropy bonus of policy gradients, with a fixed or steered coefficient."""

from collections.abc import Mapping
from typing import Any

from marl.core.statistics import adapted_entropy_coefficient
from marl.core.types import Metrics
from marl.trainers.policy_gradient.options import EntropyControl

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/coefficient_entropy | number | coefficient of a steered entropy bonus, after the update; 0 while the
    entropy is over its target
"""


class EntropyBonus:
    """Coefficient of the entropy bonus (nats a token), fixed or steered towards a target entropy."""

    def __init__(self, coefficient: float, control: EntropyControl | None) -> None:
        self._coefficient, self._control, self._is_on = coefficient, control, True

    @property
    def coefficient(self) -> float:
        """The entropy's coefficient in the loss; with steering, 0 while the entropy is above its target (as in TRL)."""
        return self._coefficient if self._is_on else 0.0

    def adapt_coefficients(self, entropy: float) -> Metrics:
        """Adapt a steered coefficient to the `entropy` measured in an update; return the coefficient as a metric."""
        if (control := self._control) is None:
            return {}
        self._coefficient = adapted_entropy_coefficient(
            self._coefficient, entropy, control.target, control.step, control.low, control.high
        )
        self._is_on = entropy <= control.target
        return {"coefficient_entropy": self.coefficient}

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self._coefficient, "wanted": self._is_on}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a steered coefficient; a fixed coefficient is always the scenario's."""
        if self._control is not None:
            self._coefficient, self._is_on = float(state["coefficient"]), bool(state["wanted"])
