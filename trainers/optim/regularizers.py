"""KL anchors and the entropy bonus: terms beside a policy's loss, with fixed, annealed or steered coefficients."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from marl.statistics import adapted_entropy, adapted_kl
from marl.types import Metrics
from trainers.optim.optimizer import course, named_tensors, restore, run_progress, snapshot

if TYPE_CHECKING:
    from trainers.settings.optimisation import Anchor
    from trainers.settings.policy_gradient import EntropyControl

INITIAL = "initial"


class Anchors:
    """Copies of a policy that it is kept close to.

    Frozen anchors share one copy of the initial weights; each refreshed one has its own. Weights that do not learn,
    such as an adapter's base, are not copied; for an adapter that changes nothing yet, its base is the initial policy.
    """

    def __init__(self, settings: Mapping[str, Anchor], model: nn.Module, steps: int) -> None:
        self.settings, self.steps = dict(settings), steps
        self.steered = {name: anchor.coefficient for name, anchor in settings.items() if anchor.target is not None}
        """Anchor -> its coefficient, of the anchors that are steered."""
        copy_of = {name: INITIAL if anchor.refresh is None else name for name, anchor in settings.items()}
        copies = {
            name: _initial_copy(model) if name == INITIAL else learnable_copy(model)
            for name in dict.fromkeys(copy_of.values())
        }
        self._tensors = {name: dict(named_tensors(copied)) for name, copied in copies.items()}
        for copied in copies.values():
            copied.eval().requires_grad_(False)
        self.models: dict[str, nn.Module] = {name: copies[of] for name, of in copy_of.items()}
        """Anchor -> its copy."""
        self.penalties = {name: model for name, model in self.models.items() if settings[name].penalises}
        """Anchors that are part of the loss; the others are only read."""

    def coefficient(self, name: str, update: int) -> float:
        """Return the weight of an anchor's KL in the loss of `update` (counted from 0)."""
        return self.steered.get(name, annealed(self.settings[name], update, self.steps))

    def steer(self, metrics: Metrics) -> Metrics:
        """Adapt coefficients to the measured KL (nats a token) of an update; return the new ones."""
        for name, beta in self.steered.items():
            anchor = self.settings[name]
            assert anchor.target is not None
            kl, samples = metrics[f"kl_{name}"], int(metrics["samples"])
            self.steered[name] = adapted_kl(beta, kl, anchor.target, samples, anchor.horizon)
        return {f"coefficient_{name}": beta for name, beta in self.steered.items()}

    def refresh(self, done: int, model: nn.Module) -> None:
        """Copy the policy into the anchors that are due after `done` updates."""
        for name, anchor in self.settings.items():
            if anchor.refresh is not None and done % anchor.refresh == 0:
                restore(self._tensors[name], dict(named_tensors(model)))

    def state_dict(self) -> dict[str, Any]:
        """Return the copies' weights; `steered` is saved beside them."""
        return {name: snapshot(tensors) for name, tensors in self._tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any], steered: Mapping[str, float] | None = None) -> None:
        """Put back the copies' weights and the steered coefficients.

        Raises:
            ValueError: if the anchors have other copies now, or others are steered.
        """
        if state.keys() != self._tensors.keys():
            raise ValueError(f"anchors are {sorted(self._tensors)}, but the saved ones are {sorted(state)}")
        if (steered := steered or {}).keys() != self.steered.keys():
            raise ValueError(f"steered anchors are {sorted(self.steered)}, the saved ones {sorted(steered)}")
        for name, tensors in self._tensors.items():
            restore(tensors, state[name])
        self.steered = {name: float(beta) for name, beta in steered.items()}


def annealed(anchor: Anchor, update: int, steps: int) -> float:
    """Return the anchor's coefficient, which goes from `coefficient` to `final`, if that is given."""
    if anchor.final is None:
        return anchor.coefficient
    return course(anchor.schedule, anchor.coefficient, anchor.final, run_progress(update, steps))


def _initial_copy(model: nn.Module) -> nn.Module:
    if all(parameter.requires_grad for parameter in model.parameters()):
        return learnable_copy(model)
    from marl.models.lora import unadapted_base

    base = unadapted_base(model)
    # A base that learns itself moves, and holds the very tensors of the policy.
    if base is None or any(parameter.requires_grad for parameter in base.parameters()):
        return learnable_copy(model)
    return base


def learnable_copy(model: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters that do not learn."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})


class EntropyBonus:
    """Coefficient of the entropy (nats a token) that is subtracted from the loss, fixed or steered."""

    def __init__(self, coefficient: float, control: EntropyControl | None) -> None:
        self._coefficient, self._control, self._wanted = coefficient, control, True

    @property
    def coefficient(self) -> float:
        """Return the coefficient; 0 while a steered entropy is over its target (as in TRL)."""
        return self._coefficient if self._wanted else 0.0

    def steer(self, entropy: float) -> Metrics:
        """Adapt the coefficient to the entropy measured in an update; return the new one."""
        if self._control is None:
            return {}
        to = self._control
        self._coefficient = adapted_entropy(self._coefficient, entropy, to.target, to.step, to.low, to.high)
        self._wanted = entropy <= to.target
        return {"coefficient_entropy": self.coefficient}

    def state_dict(self) -> dict[str, Any]:
        """Return the steered coefficient."""
        return {"coefficient": self._coefficient, "wanted": self._wanted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back; a coefficient that is not steered stays the scenario's."""
        if self._control is not None:
            self._coefficient, self._wanted = float(state["coefficient"]), bool(state["wanted"])
