"""Copies of a policy that it is kept close to."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from trainers.schedules import coefficient
from trainers.weights import named_tensors, restore, snapshot

if TYPE_CHECKING:
    from trainers.settings import Anchor

INITIAL = "initial"


class Anchors:
    """Frozen anchors share one copy of the initial weights; each refreshed one has its own.

    What does not learn, such as the base of an adapter, is not copied.
    """

    def __init__(self, settings: Mapping[str, Anchor], model: nn.Module, steps: int) -> None:
        self.settings, self.steps = dict(settings), steps
        self._copy_of = {name: INITIAL if anchor.refresh is None else name for name, anchor in settings.items()}
        fixed = {id(p): p for p in model.parameters() if not p.requires_grad}
        self._copies: dict[str, nn.Module] = {
            name: copy.deepcopy(model, dict(fixed)) for name in dict.fromkeys(self._copy_of.values())
        }
        self._tensors = {name: dict(named_tensors(copied)) for name, copied in self._copies.items()}
        for copied in self._copies.values():
            copied.eval().requires_grad_(False)

    @property
    def models(self) -> dict[str, nn.Module]:
        """Anchor -> the copy that it is."""
        return {name: self._copies[of] for name, of in self._copy_of.items()}

    def coefficient(self, name: str, update: int) -> float:
        """Weight of an anchor's KL in the loss of `update` (counted from 0)."""
        return coefficient(self.settings[name], update, self.steps)

    def refresh(self, done: int, model: nn.Module) -> None:
        """Copy the policy into those anchors whose time has come after `done` updates."""
        for name, anchor in self.settings.items():
            if anchor.refresh is not None and done % anchor.refresh == 0:
                restore(self._tensors[name], dict(named_tensors(model)))

    def state_dict(self) -> dict[str, Any]:
        """The copies' weights."""
        return {name: snapshot(tensors) for name, tensors in self._tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the copies' weights back."""
        if state.keys() != self._copies.keys():
            raise ValueError(f"anchors are {sorted(self._copies)}, but the saved ones are {sorted(state)}")
        for name, tensors in self._tensors.items():
            restore(tensors, state[name])
