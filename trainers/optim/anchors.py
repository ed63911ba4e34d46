"""KL anchors: copies of a policy to which a KL penalty keeps it close, with fixed, annealed or steered coefficients."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from marl.core.statistics import adapted_kl_coefficient
from marl.core.types import Metrics
from marl.models.lora import unadapted_base
from marl.trainers.distillation.options import TeacherTerm
from marl.trainers.optim.optimizer import (
    copy_tensors_with_equal_names,
    cpu_copy,
    named_trained_tensors,
    schedule_progress,
    scheduled_value,
)
from marl.trainers.optim.settings import KlAnchor

# Metrics of this module (name | unit | meaning), which `tests/bench/figures.py` copies into marl/README.md.
METRICS = """
policy/POLICY/coefficient_ANCHOR | number | coefficient of an anchor that is steered to a `target`, after the update
"""

INITIAL = "initial"
"""Key of the copy of the initial weights, which all frozen anchors share."""


class KlAnchors:
    """Anchor models of KL penalties, and the penalties' coefficients.

    All frozen anchors share one copy of the initial weights; each refreshed anchor has its own copy. Weights that are
    not trained, such as an adapter's base, are shared with the policy.
    """

    def __init__(self, settings: Mapping[str, KlAnchor], model: nn.Module, steps: int) -> None:
        self.settings, self.steps = dict(settings), steps
        self.steered = {name: anchor.coefficient for name, anchor in settings.items() if anchor.target is not None}
        """Steered anchor -> its current coefficient."""
        self.models: dict[str, nn.Module] = {}
        """Anchor name -> its model."""
        copies: dict[str, nn.Module] = {}
        for name, anchor in settings.items():
            key = INITIAL if anchor.refresh is None else name
            if key not in copies:
                # A new adapter's initial policy is its frozen base. If the base is trained, too, a copy is needed.
                base = unadapted_base(model) if key == INITIAL else None
                is_frozen = base is not None and not any(p.requires_grad for p in base.parameters())
                copies[key] = base if base is not None and is_frozen else copy_with_shared_frozen_weights(model)
            self.models[name] = copies[key]
        self._tensors: dict[str, dict[str, Tensor]] = {}
        for key, copied in copies.items():
            # `named_trained_tensors` skips frozen parameters, so it must precede `requires_grad_(False)`.
            self._tensors[key] = dict(named_trained_tensors(copied))
            copied.eval().requires_grad_(False)
        self.loss_models = {name: model for name, model in self.models.items() if settings[name].adds_kl_loss_term}
        """Models of the anchors with a KL term in the loss. Other anchors are only read, for KL in the reward."""

    def coefficient(self, anchor_name: str, update_index: int) -> float:
        """Return the coefficient of the anchor's KL term in the loss of the update `update_index` (from 0)."""
        return self.steered.get(
            anchor_name, scheduled_kl_coefficient(self.settings[anchor_name], update_index, self.steps)
        )

    def adapt_coefficients(self, metrics: Metrics) -> Metrics:
        """Adapt steered coefficients to the KL (nats a token) of an update; return the new coefficients as metrics."""
        for name, beta in self.steered.items():
            anchor = self.settings[name]
            assert anchor.target is not None
            kl, samples = metrics[f"kl_{name}"], int(metrics["samples"])
            self.steered[name] = adapted_kl_coefficient(beta, kl, anchor.target, samples, anchor.horizon)
        return {f"coefficient_{name}": beta for name, beta in self.steered.items()}

    def refresh_due_anchor_models(self, update_count: int, model: nn.Module) -> None:
        """Copy the policy's weights into the anchors that are due for a refresh after `update_count` updates."""
        for name, anchor in self.settings.items():
            if anchor.refresh is not None and update_count % anchor.refresh == 0:
                copy_tensors_with_equal_names(self._tensors[name], dict(named_trained_tensors(model)))

    def state_dict(self) -> dict[str, Any]:
        """Return the trained weights of the anchor models, without the steered coefficients."""
        return {name: cpu_copy(tensors) for name, tensors in self._tensors.items()}

    def load_state_dict(
        self, state: Mapping[str, Any], steered_coefficients: Mapping[str, float] | None = None
    ) -> None:
        """Restore the weights of the anchor models, and the steered coefficients.

        Raises:
            ValueError: if the saved copies or the saved steered coefficients are of other anchors.
        """
        if state.keys() != self._tensors.keys():
            raise ValueError(f"anchors are {sorted(self._tensors)}, but the saved ones are {sorted(state)}")
        if (steered := steered_coefficients or {}).keys() != self.steered.keys():
            raise ValueError(f"steered anchors are {sorted(self.steered)}, the saved ones {sorted(steered)}")
        for name, tensors in self._tensors.items():
            copy_tensors_with_equal_names(tensors, state[name])
        self.steered = {name: float(beta) for name, beta in steered.items()}


def scheduled_kl_coefficient(anchor: KlAnchor | TeacherTerm, update_index: int, total_updates: int) -> float:
    """Return the KL coefficient at `update_index` of `total_updates`, scheduled from `anchor.coefficient` to
    `anchor.final` if given."""
    if anchor.final is None:
        return anchor.coefficient
    return scheduled_value(
        anchor.schedule, anchor.coefficient, anchor.final, schedule_progress(update_index, total_updates)
    )


def copy_with_shared_frozen_weights(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with its own trained parameters; frozen parameters are shared with `model`."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})
