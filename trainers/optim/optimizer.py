"""AdamW with the gradient clipped, and a state that is plain enough for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainers.optim.master_weights import Masters

if TYPE_CHECKING:
    from trainers.settings import Optimisation


class Optimizer:
    """Steps the parameters that want gradients: the model's, and those of what learns beside it.

    Each of these has its gradient clipped alone, and its own share (`scales`) of the learning rate. Parameters in half
    precision are stepped in float32, see `Masters`.
    """

    def __init__(
        self, model: nn.Module, beside: Mapping[str, nn.Module], settings: Optimisation, scales: Mapping[str, float]
    ) -> None:
        wanted = [(_wanted(model), 1.0), *((_wanted(m, f"{n}/"), scales.get(n, 1.0)) for n, m in beside.items())]
        named = [pair for pairs, _ in wanted for pair in pairs]
        self._names, self.parameters, self._max_norm = [n for n, _ in named], [p for _, p in named], settings.max_norm
        self._masters = Masters(self.parameters)
        groups = [{"params": [(n, self._masters.of(p)) for n, p in pairs], "scale": by} for pairs, by in wanted]
        self._adam = _adam(settings, groups)

    def clip(self) -> Tensor:
        """Shorten the gradients to the greatest norm allowed; the norm of all of them before that."""
        norms = [nn.utils.clip_grad_norm_(group["params"], self._max_norm) for group in self._adam.param_groups]
        # Where nothing has a gradient, as in a critic's warm-up, torch's zero may be on another device.
        return torch.stack([norm.to(self.parameters[0].device) for norm in norms]).norm()

    def step(self, lr: float) -> None:
        """Move the weights and forget the gradient."""
        for group in self._adam.param_groups:
            group["lr"] = lr * group["scale"]
        self._adam.step()
        self._masters.hand_down()
        self.forget()

    def forget(self) -> None:
        """Drop the gradient."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Parameter -> its moments and step count, none before the first step; and its master, if it has one."""
        state = self._adam.state_dict()["state"]
        kept: dict[str, Any] = {self._names[i]: _copied(moments) for i, moments in state.items()}
        for name, parameter in zip(self._names, self.parameters, strict=True):
            if self._masters.held(parameter):
                kept[name] = {**kept.get(name, {}), "master": _copied(self._masters.of(parameter).detach())}
        return kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the moments back; settings such as betas stay those of the scenario."""
        if unknown := state.keys() - set(self._names):
            raise ValueError(f"optimizer state of {sorted(unknown)} fits no trained parameter")
        indexed: dict[int, Any] = {}
        masters: dict[nn.Parameter, Tensor] = {}
        for index, (name, parameter) in enumerate(zip(self._names, self.parameters, strict=True)):
            moments = dict(state.get(name, {}))
            if "master" in moments:
                masters[parameter] = moments.pop("master")
            if moments:
                indexed[index] = moments
        self._masters.restore(masters)
        self._adam.load_state_dict({"state": indexed, "param_groups": self._adam.state_dict()["param_groups"]})


def _adam(settings: Optimisation, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, fused=True, **common)
    from bitsandbytes import optim  # type: ignore[import-not-found]  # an extra

    kinds = {"adamw_8bit": optim.AdamW8bit, "paged_adamw": optim.PagedAdamW, "paged_adamw_8bit": optim.PagedAdamW8bit}
    return kinds[settings.optimizer](groups, **common)


def _copied(value: Any) -> Any:
    """A copy in main memory, of a nest of tensors and numbers."""
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return value.to("cpu", copy=True) if isinstance(value, Tensor) else value


def _wanted(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Parameter]]:
    return [(f"{prefix}{name}", p) for name, p in module.named_parameters() if p.requires_grad]
