"""AdamW with the gradient clipped, and a state that is plain enough for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from trainers.settings import Optimisation


class Optimizer:
    """Steps the parameters that want gradients: the model's, and those of what learns beside it."""

    def __init__(self, model: nn.Module, beside: Mapping[str, nn.Module], settings: Optimisation) -> None:
        named = dict(model.named_parameters())
        named |= {f"{name}/{n}": p for name, module in beside.items() for n, p in module.named_parameters()}
        named = {name: p for name, p in named.items() if p.requires_grad}
        self._names, self.parameters, self._max_norm = list(named), list(named.values()), settings.max_norm
        self._adam = torch.optim.AdamW(
            self.parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
        )

    def clip(self) -> Tensor:
        """Shorten the gradient to the greatest norm allowed; its norm before that."""
        return nn.utils.clip_grad_norm_(self.parameters, self._max_norm)

    def step(self, lr: float) -> None:
        """Move the weights and forget the gradient."""
        self._adam.param_groups[0]["lr"] = lr
        self._adam.step()
        self.forget()

    def forget(self) -> None:
        """Drop the gradient."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Parameter -> its moments and step count; empty before the first step."""
        state = self._adam.state_dict()["state"]
        return {self._names[i]: {k: v.to("cpu", copy=True) for k, v in kept.items()} for i, kept in state.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the moments back; settings such as betas stay those of the scenario."""
        if unknown := state.keys() - set(self._names):
            raise ValueError(f"optimizer state of {sorted(unknown)} fits no trained parameter")
        indexed = {i: dict(state[name]) for i, name in enumerate(self._names) if name in state}
        self._adam.load_state_dict({"state": indexed, "param_groups": self._adam.state_dict()["param_groups"]})
