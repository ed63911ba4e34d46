"""Copies of a policy that it is kept close to."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from marl.controllers import adapted_kl
from marl.types import Metrics
from trainers.optim.schedules import coefficient
from trainers.optim.weights import named_tensors, restore, snapshot

if TYPE_CHECKING:
    from trainers.settings import Anchor

INITIAL = "initial"


class Anchors:
    """Frozen anchors share one copy of the initial weights; each refreshed one has its own.

    What does not learn, such as the base of an adapter, is not copied; and while an adapter changes nothing yet, the
    initial weights are those of its base, and nothing is.
    """

    def __init__(self, settings: Mapping[str, Anchor], model: nn.Module, steps: int) -> None:
        self.settings, self.steps = dict(settings), steps
        self._steered = {name: anchor.coefficient for name, anchor in settings.items() if anchor.target is not None}
        self._copy_of = {name: INITIAL if anchor.refresh is None else name for name, anchor in settings.items()}
        self._copies: dict[str, nn.Module] = {
            name: _initial(model) if name == INITIAL else _copied(model)
            for name in dict.fromkeys(self._copy_of.values())
        }
        self._tensors = {name: dict(named_tensors(copied)) for name, copied in self._copies.items()}
        for copied in self._copies.values():
            copied.eval().requires_grad_(False)

    @property
    def models(self) -> dict[str, nn.Module]:
        """Anchor -> the copy that it is."""
        return {name: self._copies[of] for name, of in self._copy_of.items()}

    @property
    def penalties(self) -> dict[str, nn.Module]:
        """Those that are part of the loss; the others are only read."""
        return {name: model for name, model in self.models.items() if self.settings[name].penalises}

    def coefficient(self, name: str, update: int) -> float:
        """Weight of an anchor's KL in the loss of `update` (counted from 0)."""
        return self._steered.get(name, coefficient(self.settings[name], update, self.steps))

    def steer(self, metrics: Metrics) -> Metrics:
        """Adapt coefficients to the KL (nats a token) of an update; the new ones."""
        for name, beta in self._steered.items():
            anchor = self.settings[name]
            assert anchor.target is not None
            kl, samples = metrics[f"kl_{name}"], int(metrics["samples"])
            self._steered[name] = adapted_kl(beta, kl, anchor.target, samples, anchor.horizon)
        return {f"coefficient_{name}": beta for name, beta in self._steered.items()}

    def refresh(self, done: int, model: nn.Module) -> None:
        """Copy the policy into those anchors whose time has come after `done` updates."""
        for name, anchor in self.settings.items():
            if anchor.refresh is not None and done % anchor.refresh == 0:
                restore(self._tensors[name], dict(named_tensors(model)))

    @property
    def steered(self) -> dict[str, float]:
        """Anchor -> its coefficient, of those that are steered; to be kept beside the weights."""
        return dict(self._steered)

    def restore_steered(self, coefficients: Mapping[str, float]) -> None:
        """Put back what `steered` gave.

        Raises:
            ValueError: if other anchors are steered now.
        """
        if coefficients.keys() != self._steered.keys():
            raise ValueError(f"steered anchors are {sorted(self._steered)}, the saved ones {sorted(coefficients)}")
        self._steered = {name: float(beta) for name, beta in coefficients.items()}

    def state_dict(self) -> dict[str, Any]:
        """The copies' weights."""
        return {name: snapshot(tensors) for name, tensors in self._tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the copies' weights back."""
        if state.keys() != self._copies.keys():
            raise ValueError(f"anchors are {sorted(self._copies)}, but the saved ones are {sorted(state)}")
        for name, tensors in self._tensors.items():
            restore(tensors, state[name])


def _initial(model: nn.Module) -> nn.Module:
    if all(parameter.requires_grad for parameter in model.parameters()):
        return _copied(model)
    from marl.models.lora import bare

    return bare(model) or _copied(model)


def _copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})
