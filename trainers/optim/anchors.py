"""KL anchors: copies of a policy that the policy is kept close to, with fixed, annealed or steered coefficients."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from marl.core.statistics import adapted_kl
from marl.core.types import Metrics
from marl.models.lora import unadapted_base
from marl.trainers.optim.optimizer import copy_into, cpu_copy, learned_tensors, schedule_progress, scheduled_value
from marl.trainers.optim.settings import KlAnchor

INITIAL = "initial"


class KlAnchors:
    """Copies of a policy for KL penalties.

    Frozen anchors share one copy of the initial weights; each refreshed anchor has its own copy. Weights that do not
    learn, such as an adapter's base, are not copied; the initial policy of an adapter that changes nothing yet is its
    base.
    """

    def __init__(self, settings: Mapping[str, KlAnchor], model: nn.Module, steps: int) -> None:
        self.settings, self.steps = dict(settings), steps
        self.steered = {name: anchor.coefficient for name, anchor in settings.items() if anchor.target is not None}
        """Current coefficients of the steered anchors, by name."""
        self.models: dict[str, nn.Module] = {}
        """Copy of each anchor, by name."""
        copies: dict[str, nn.Module] = {}
        for name, anchor in settings.items():
            key = INITIAL if anchor.refresh is None else name
            if key not in copies:
                copies[key] = _initial_copy(model) if key == INITIAL else copy_trained_weights(model)
            self.models[name] = copies[key]
        # Taken before parameters are frozen, because frozen ones are no learned tensors.
        self._tensors = {key: dict(learned_tensors(copied)) for key, copied in copies.items()}
        for copied in copies.values():
            copied.eval().requires_grad_(False)
        self.loss_models = {name: model for name, model in self.models.items() if settings[name].is_in_loss}
        """Copies of the anchors that are part of the loss; the other anchors are only read."""

    def coefficient(self, name: str, update: int) -> float:
        """Return the weight of an anchor's KL in the loss of `update` (counted from 0)."""
        return self.steered.get(name, annealed_coefficient(self.settings[name], update, self.steps))

    def steer(self, metrics: Metrics) -> Metrics:
        """Adapt coefficients to the measured KL (nats a token) of an update; return the new coefficients."""
        for name, beta in self.steered.items():
            anchor = self.settings[name]
            assert anchor.target is not None
            kl, samples = metrics[f"kl_{name}"], int(metrics["samples"])
            self.steered[name] = adapted_kl(beta, kl, anchor.target, samples, anchor.horizon)
        return {f"coefficient_{name}": beta for name, beta in self.steered.items()}

    def refresh(self, updates: int, model: nn.Module) -> None:
        """Copy the policy into the anchors that are due after `updates` updates."""
        for name, anchor in self.settings.items():
            if anchor.refresh is not None and updates % anchor.refresh == 0:
                copy_into(self._tensors[name], dict(learned_tensors(model)))

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the copies; `steered` is saved beside them."""
        return {name: cpu_copy(tensors) for name, tensors in self._tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any], steered: Mapping[str, float] | None = None) -> None:
        """Restore the weights of the copies and the steered coefficients.

        Raises:
            ValueError: if the saved copies or the saved steered coefficients are of other anchors.
        """
        if state.keys() != self._tensors.keys():
            raise ValueError(f"anchors are {sorted(self._tensors)}, but the saved ones are {sorted(state)}")
        if (steered := steered or {}).keys() != self.steered.keys():
            raise ValueError(f"steered anchors are {sorted(self.steered)}, the saved ones {sorted(steered)}")
        for name, tensors in self._tensors.items():
            copy_into(tensors, state[name])
        self.steered = {name: float(beta) for name, beta in steered.items()}


def annealed_coefficient(anchor: KlAnchor, update: int, steps: int) -> float:
    """Return the anchor's coefficient at `update`, on its schedule from `coefficient` to `final` if that is given."""
    if anchor.final is None:
        return anchor.coefficient
    return scheduled_value(anchor.schedule, anchor.coefficient, anchor.final, schedule_progress(update, steps))


def _initial_copy(model: nn.Module) -> nn.Module:
    if all(parameter.requires_grad for parameter in model.parameters()):
        return copy_trained_weights(model)
    base = unadapted_base(model)
    # A base that learns itself moves, and holds the very tensors of the policy.
    if base is None or any(parameter.requires_grad for parameter in base.parameters()):
        return copy_trained_weights(model)
    return base


def copy_trained_weights(model: nn.Module) -> nn.Module:
    """Return a copy of `model` that shares the parameters that do not learn."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})
