"""AdamW with gradient clipping and float32 master weights, learning rate schedules, and a model's tensors by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from marl.models.half_precision import HALVES
from marl.models.sharding import is_shard, lay_out, settle, whole
from marl.protocols import Collective
from marl.state import expect_alike

if TYPE_CHECKING:
    from trainers.settings.optimisation import Course, Optimisation


class Optimizer:
    """Steps the parameters that require gradients: the model's, and those of further modules.

    Each of these has its gradient clipped alone, and its own factor (`scales`) of the learning rate. Parameters in half
    precision are stepped in float32, see `MasterWeights`.
    """

    def __init__(
        self, model: nn.Module, modules: Mapping[str, nn.Module], settings: Optimisation, scales: Mapping[str, float]
    ) -> None:
        trained = [(_trained(model), 1.0), *((_trained(m, f"{n}/"), scales.get(n, 1.0)) for n, m in modules.items())]
        named = [pair for pairs, _ in trained for pair in pairs]
        self._names, self.parameters, self._max_norm = [n for n, _ in named], [p for _, p in named], settings.max_norm
        self._master_weights = MasterWeights(self.parameters)
        groups = [{"params": [(n, self._master_weights.of(p)) for n, p in pairs], "scale": by} for pairs, by in trained]
        self._adam = _adam(settings, groups)

    def add_up(self, collective: Collective) -> None:
        """Replace the gradients by their sums over all processes; those of shards are such sums already."""
        if collective.size == 1:
            return
        stepped = [parameter for group in self._adam.param_groups for parameter in group["params"]]
        parts = [parameter for parameter in stepped if not is_shard(parameter)]
        if not parts:
            return
        # A process whose rows do not reach a parameter adds 0; where no process's do, there is no gradient to step by.
        reached = torch.tensor([float(p.grad is not None) for p in parts], device=parts[0].device)
        collective.add_up([reached])
        learning = [parameter for parameter, many in zip(parts, reached.tolist(), strict=True) if many]
        for parameter in learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        collective.add_up([gradient for parameter in learning if (gradient := parameter.grad) is not None])

    def clip(self) -> Tensor:
        """Clip the gradients' norms; return the norm of all of them before that."""
        norms = [nn.utils.clip_grad_norm_(group["params"], self._max_norm) for group in self._adam.param_groups]
        # Where nothing has a gradient, as in a critic's warm-up, torch's zero may be on another device.
        return torch.stack([whole(norm).to(self.parameters[0].device) for norm in norms]).norm()

    def step(self, lr: float) -> None:
        """Step the weights and drop the gradients."""
        for group in self._adam.param_groups:
            group["lr"] = lr * group["scale"]
        self._adam.step()
        self._master_weights.write_back()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return parameter -> its moments and step count (none before the first step), and its master if it has one."""
        moments = self._adam.state_dict()["state"]
        state: dict[str, Any] = {self._names[i]: snapshot(values) for i, values in moments.items()}
        for name, parameter in zip(self._names, self.parameters, strict=True):
            if (master := self._master_weights.of(parameter)) is not parameter:
                state[name] = {**state.get(name, {}), "master": snapshot(master.detach())}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the moments back; settings such as betas stay those of the scenario.

        Raises:
            ValueError: if they are of other parameters, or of others' shapes or types.
        """
        if unknown := state.keys() - set(self._names):
            raise ValueError(f"optimizer state of {sorted(unknown)} fits no trained parameter")
        indexed: dict[int, Any] = {}
        saved: dict[nn.Parameter, Tensor] = {}
        for index, (name, parameter) in enumerate(zip(self._names, self.parameters, strict=True)):
            moments = dict(state.get(name, {}))
            stepped = self._master_weights.of(parameter).detach()
            if "master" in moments:
                saved[parameter] = moments.pop("master")
                expect_alike({name: saved[parameter]}, {name: stepped}, "master weights do not fit the model")
            if moments:
                self._expect_moments(moments, name, stepped)
                indexed[index] = {key: lay_out(value, stepped) for key, value in moments.items()}
        self._master_weights.restore(saved)
        self._adam.load_state_dict({"state": indexed, "param_groups": self._adam.state_dict()["param_groups"]})

    def _expect_moments(self, moments: Mapping[str, Any], name: str, stepped: Tensor) -> None:
        # Torch would cast and broadcast them. Those of bitsandbytes are packed, and of other types.
        if isinstance(self._adam, torch.optim.AdamW):
            held = {"exp_avg": stepped, "exp_avg_sq": stepped, "step": torch.zeros((), dtype=torch.float32)}
            expect_alike(moments, held, f"optimizer state of {name!r} does not fit")


class MasterWeights:
    """Float32 copies of parameters in half precision, which an optimizer steps in their place.

    A bfloat16 number has 8 bits of mantissa: a step of a thousandth of it would be rounded away. The model, which
    computes with the sampler's own arithmetic, is given what the copies round to. Gradients move to them as soon as a
    backward pass is done with the parameter, so they add up in float32. Wider parameters are their own masters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._copies = {p: nn.Parameter(p.detach().float()) for p in parameters if p.dtype in HALVES}
        for parameter in self._copies:
            parameter.register_post_accumulate_grad_hook(self._move_gradient)

    def of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the parameter that is stepped in place of `parameter`."""
        return self._copies.get(parameter, parameter)

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self._copies.items():
            parameter.copy_(master)

    @torch.no_grad()
    def restore(self, saved: Mapping[nn.Parameter, Tensor]) -> None:
        """Put back the saved masters; for the others, the model's weights."""
        for parameter, master in self._copies.items():
            master.copy_(lay_out(saved.get(parameter, parameter), master))

    def _move_gradient(self, parameter: Tensor) -> None:
        master = self._copies[parameter]  # type: ignore[index]  # hooks are typed for tensors of any kind
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad += parameter.grad
        parameter.grad = None


def _adam(settings: Optimisation, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, fused=True, **common)
    from bitsandbytes import optim  # type: ignore[import-not-found]  # an extra

    kinds = {"adamw_8bit": optim.AdamW8bit, "paged_adamw": optim.PagedAdamW, "paged_adamw_8bit": optim.PagedAdamW8bit}
    return kinds[settings.optimizer](groups, **common)


def _trained(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Parameter]]:
    return [(f"{prefix}{name}", p) for name, p in module.named_parameters() if p.requires_grad]


def run_progress(update: int, steps: int, warm_up: int = 0) -> float:
    """Return 0 at the first update after the warm-up, 1 at the last of `steps` and beyond, linear between."""
    return min(1.0, max(0.0, (update - warm_up) / max(1, steps - 1 - warm_up)))


def course(schedule: Course, first: float, last: float, done: float) -> float:
    """Return the value after a share `done` of the way from `first` to `last`.

    With `inverse_sqrt` it is first / sqrt(1 + c done), c such that it ends at `last`: 1 / value^2 grows linearly, as
    with the step sizes and temperatures 1 / sqrt(t) of magnetic mirror descent (2206.05825).
    """
    if schedule == "linear":
        return first + (last - first) * done
    if schedule == "cosine":
        return last + (first - last) * (1 + math.cos(math.pi * done)) / 2
    return first / math.sqrt(1 + ((first / last) ** 2 - 1) * done)


def learning_rate(settings: Optimisation, update: int, steps: int) -> float:
    """Return the rate of an update (from 0): rising in the warm-up, then following the schedule to `lr_end`."""
    if update < settings.warm_up:
        return settings.lr * (update + 1) / (settings.warm_up + 1)
    if settings.schedule == "constant":
        return settings.lr
    done = run_progress(update, steps, settings.warm_up)
    return course(settings.schedule, settings.lr, settings.lr_end or 0.0, done)


def named_tensors(model: nn.Module, *, frozen: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that learning changes: parameters, tied ones once; saved buffers, too, if all parameters are
    here. With `frozen`, parameters that do not learn as well. Of sharded ones, this process's shards."""
    settle(model)
    parameters = dict(model.named_parameters())
    wanted = {name: parameter for name, parameter in parameters.items() if frozen or parameter.requires_grad}
    yield from ((name, parameter.detach()) for name, parameter in wanted.items())
    buffers = dict(model.named_buffers())
    if buffers and len(wanted) == len(parameters):
        yield from ((name, tensor) for name, tensor in model.state_dict().items() if name in buffers)


def snapshot(value: Any) -> Any:
    """Return a copy in main memory of a nest of tensors, whole ones, and numbers."""
    if isinstance(value, Mapping):
        return {name: snapshot(inner) for name, inner in value.items()}
    return whole(value).to("cpu", copy=True) if isinstance(value, Tensor) else value


@torch.no_grad()
def restore(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy `saved` into `tensors`; one of both may be in shards.

    Raises:
        ValueError: if names, shapes or types differ; nothing is changed then.
    """
    expect_alike(saved, tensors, "weights do not fit the model")
    for name, tensor in tensors.items():
        tensor.copy_(lay_out(whole(saved[name]), tensor))
