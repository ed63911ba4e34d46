"""AdamW with gradient clipping and float32 master weights, learning rate schedules, and a model's tensors by name."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from marl.core.state import check_same_tensors
from marl.models.half_precision import HALF_PRECISION_TYPES
from marl.models.sharding import full_tensor, is_shard, reshard, shard_like
from marl.protocols import DataParallelGroup
from marl.trainers.optim.settings import GradientLearnerConfig, ScheduleShape


class Optimizer:
    """Steps the parameters that require gradients: the model's, and those of further modules.

    The gradients of the model and of each module are clipped separately, and each module has its own factor (`scales`)
    of the learning rate. Parameters in half precision are stepped in float32, see `MasterWeights`.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        settings: GradientLearnerConfig,
        scales: Mapping[str, float],
    ) -> None:
        self._names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        self._max_norm = settings.max_norm
        sizes: list[tuple[int, float]] = []
        for prefix, module, scale in (
            ("", model, 1.0),
            *((f"{name}/", module, scales.get(name, 1.0)) for name, module in modules.items()),
        ):
            trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
            self._names += [f"{prefix}{name}" for name, _ in trained]
            self.parameters += [parameter for _, parameter in trained]
            sizes.append((len(trained), scale))
        self._master_weights = MasterWeights(self.parameters)
        stepped = zip(self._names, map(self._master_weights.stepped_parameter, self.parameters), strict=True)
        groups = [{"params": list(islice(stepped, size)), "scale": scale} for size, scale in sizes]
        options: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "weight_decay": settings.weight_decay}
        if settings.optimizer == "adamw":
            self._adam: torch.optim.Optimizer = torch.optim.AdamW(groups, fused=True, **options)
        else:
            from bitsandbytes import optim  # type: ignore[import-not-found]  # an extra

            classes = {
                "adamw_8bit": optim.AdamW8bit,
                "paged_adamw": optim.PagedAdamW,
                "paged_adamw_8bit": optim.PagedAdamW8bit,
            }
            self._adam = classes[settings.optimizer](groups, **options)

    def all_reduce_gradients(self, collective: DataParallelGroup) -> None:
        """Replace the gradients by their sums over all processes; gradients of shards are sums already."""
        if collective.world_size == 1:
            return
        stepped = [parameter for group in self._adam.param_groups for parameter in group["params"]]
        replicated = [parameter for parameter in stepped if not is_shard(parameter)]
        if not replicated:
            return
        # A process whose rows do not reach a parameter adds 0; where no process's do, there is no gradient to step by.
        reached = torch.tensor([float(p.grad is not None) for p in replicated], device=replicated[0].device)
        collective.all_reduce_sum([reached])
        gradients: list[Tensor] = []
        for parameter, count in zip(replicated, reached.tolist(), strict=True):
            if count:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        collective.all_reduce_sum(gradients)

    def clip(self) -> Tensor:
        """Clip the norm of each group's gradients; return the norm of all gradients before clipping."""
        norms = [nn.utils.clip_grad_norm_(group["params"], self._max_norm) for group in self._adam.param_groups]
        # Where nothing has a gradient, as in a critic's warm-up, torch's zero may be on another device.
        return torch.stack([full_tensor(norm).to(self.parameters[0].device) for norm in norms]).norm()

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
        """Return the moments and step count of each parameter by name (none before the first step), and its master."""
        moments = self._adam.state_dict()["state"]
        state: dict[str, Any] = {self._names[i]: cpu_copy(values) for i, values in moments.items()}
        for name, parameter in zip(self._names, self.parameters, strict=True):
            if (master := self._master_weights.stepped_parameter(parameter)) is not parameter:
                state[name] = {**state.get(name, {}), "master": cpu_copy(master.detach())}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the moments; settings such as betas stay those of the scenario.

        Raises:
            ValueError: if a name, a shape or a dtype fits no trained parameter.
        """
        if unknown := state.keys() - set(self._names):
            raise ValueError(f"optimizer state of {sorted(unknown)} fits no trained parameter")
        indexed: dict[int, Any] = {}
        saved: dict[nn.Parameter, Tensor] = {}
        for index, (name, parameter) in enumerate(zip(self._names, self.parameters, strict=True)):
            moments = dict(state.get(name, {}))
            stepped = self._master_weights.stepped_parameter(parameter).detach()
            if "master" in moments:
                saved[parameter] = moments.pop("master")
                check_same_tensors({name: saved[parameter]}, {name: stepped}, "master weights do not fit the model")
            if moments:
                # Torch would cast and broadcast other moments. Those of bitsandbytes are packed, and of other dtypes.
                if isinstance(self._adam, torch.optim.AdamW):
                    step = torch.zeros((), dtype=torch.float32)
                    expected = {"exp_avg": stepped, "exp_avg_sq": stepped, "step": step}
                    check_same_tensors(moments, expected, f"optimizer state of {name!r} does not fit")
                indexed[index] = {key: shard_like(value, stepped) for key, value in moments.items()}
        self._master_weights.restore(saved)
        self._adam.load_state_dict({"state": indexed, "param_groups": self._adam.state_dict()["param_groups"]})


class MasterWeights:
    """Float32 copies of parameters in half precision, which an optimizer steps in their place.

    A bfloat16 number has 8 bits of mantissa: a step of a thousandth would be rounded away. The model computes with
    the sampler's own arithmetic, so its weights are the rounded copies. Each gradient moves to its copy as soon as a
    backward pass is done with the parameter, so gradients add up in float32. Wider parameters are their own masters.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._copies = {p: nn.Parameter(p.detach().float()) for p in parameters if p.dtype in HALF_PRECISION_TYPES}
        for parameter in self._copies:
            parameter.register_post_accumulate_grad_hook(self._move_gradient)

    def stepped_parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the master of `parameter`, or `parameter` itself if it has none."""
        return self._copies.get(parameter, parameter)

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the masters into the model."""
        for parameter, master in self._copies.items():
            parameter.copy_(master)

    @torch.no_grad()
    def restore(self, saved: Mapping[nn.Parameter, Tensor]) -> None:
        """Restore the `saved` masters; a master that was not saved takes the model's weights."""
        for parameter, master in self._copies.items():
            master.copy_(shard_like(saved.get(parameter, parameter), master))

    def _move_gradient(self, parameter: Tensor) -> None:
        master = self._copies[parameter]  # type: ignore[index]  # hooks are typed for tensors of any kind
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad += parameter.grad
        parameter.grad = None


def schedule_progress(update: int, steps: int, warm_up: int = 0) -> float:
    """Return the progress of a schedule: 0 up to the end of the warm-up, 1 from the last of `steps` on, else linear."""
    return min(1.0, max(0.0, (update - warm_up) / max(1, steps - 1 - warm_up)))


def scheduled_value(schedule: ScheduleShape, first: float, last: float, done: float) -> float:
    """Return the value of a schedule from `first` to `last` at the progress `done` (0 to 1).

    With `inverse_sqrt` the value is first / sqrt(1 + c done), with c such that the schedule ends at `last`: 1 / value^2
    grows linearly, like step sizes and temperatures 1 / sqrt(t) of magnetic mirror descent (2206.05825).
    """
    if schedule == "linear":
        return first + (last - first) * done
    if schedule == "cosine":
        return last + (first - last) * (1 + math.cos(math.pi * done)) / 2
    return first / math.sqrt(1 + ((first / last) ** 2 - 1) * done)


def scheduled_lr(settings: GradientLearnerConfig, update: int, steps: int) -> float:
    """Return the learning rate of `update` (counted from 0): a warm-up to `lr`, then the schedule to `lr_end`."""
    if update < settings.warm_up:
        return settings.lr * (update + 1) / (settings.warm_up + 1)
    if settings.schedule == "constant":
        return settings.lr
    done = schedule_progress(update, steps, settings.warm_up)
    return scheduled_value(settings.schedule, settings.lr, settings.lr_end or 0.0, done)


def learned_tensors(model: nn.Module, *, frozen: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield the trained tensors by name; with `frozen`, also the parameters that are not trained.

    Tied parameters come once. Saved buffers come too if all parameters are yielded. Of sharded parameters, this
    process's shards are yielded.
    """
    reshard(model)
    parameters = dict(model.named_parameters())
    selected = [(name, p.detach()) for name, p in parameters.items() if frozen or p.requires_grad]
    yield from selected
    buffers = dict(model.named_buffers())
    if buffers and len(selected) == len(parameters):
        # The state dict leaves out buffers that are not saved.
        yield from ((name, tensor) for name, tensor in model.state_dict().items() if name in buffers)


def cpu_copy(value: Any) -> Any:
    """Return a copy in main memory of nested mappings of tensors and numbers; shards are gathered to full tensors."""
    if isinstance(value, Mapping):
        return {name: cpu_copy(inner) for name, inner in value.items()}
    return full_tensor(value).to("cpu", copy=True) if isinstance(value, Tensor) else value


@torch.no_grad()
def copy_into(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy `saved` into `tensors`; either may be sharded.

    Raises:
        ValueError: if names, shapes or dtypes differ; then nothing is changed.
    """
    check_same_tensors(saved, tensors, "weights do not fit the model")
    for name, tensor in tensors.items():
        tensor.copy_(shard_like(full_tensor(saved[name]), tensor))
