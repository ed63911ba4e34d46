"""AdamW with gradient clipping and float32 master weights; learning rate schedules; a model's tensors by name."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from marl.core.state import check_same_tensors
from marl.core.state_shares import ShardedTensor
from marl.models.half_precision import HALF_PRECISION_TYPES
from marl.models.sharding import copy_full_or_own_rows, copy_sharded_like, cpu_shard, full_tensor, is_shard, reshard
from marl.protocols import DataParallelGroup
from marl.trainers.optim.settings import GradientLearnerConfig, ScheduledLearnerConfig, ScheduleShape


class Optimizer:
    """AdamW over the trained parameters of a model and of further modules, such as a critic.

    Gradients are clipped separately for the model and for each module. `scales` maps a module to its factor of the
    learning rate. Parameters in half precision are stepped in float32 (`MasterWeights`).
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        settings: GradientLearnerConfig,
        scales: Mapping[str, float],
    ) -> None:
        self.names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        self._max_norm = settings.max_norm
        group_sizes: dict[str, int] = {}
        for module_name, module in {"": model, **modules}.items():
            prefix = f"{module_name}/" if module_name else ""
            trained = {prefix + name: p for name, p in module.named_parameters() if p.requires_grad}
            self.names += trained
            self.parameters += trained.values()
            group_sizes[module_name] = len(trained)
        self._model_parameter_count = group_sizes[""]
        self._master_weights = MasterWeights(self.parameters)
        stepped = zip(self.names, map(self._master_weights.master_or_parameter, self.parameters), strict=True)
        groups: list[dict[str, Any]] = []
        for module_name, size in group_sizes.items():
            groups.append({"params": list(islice(stepped, size)), "scale": scales.get(module_name, 1.0)})
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

    def trained_model_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the trained parameters of the model by name, without a walk through its modules."""
        count = self._model_parameter_count
        return list(zip(self.names[:count], self.parameters[:count], strict=True))

    def all_reduce_gradients(self, collective: DataParallelGroup) -> None:
        """Sum the gradients over all processes; gradients of sharded parameters are sums already."""
        if collective.world_size == 1:
            return
        replicated: list[nn.Parameter] = []
        for group in self._adam.param_groups:
            replicated += [parameter for parameter in group["params"] if not is_shard(parameter)]
        if not replicated:
            return
        # Processes without a gradient add 0. If no process has one, it stays None, so that AdamW skips the parameter.
        has_gradient = torch.tensor([float(p.grad is not None) for p in replicated], device=replicated[0].device)
        collective.all_reduce_sum([has_gradient])
        gradients: list[Tensor] = []
        for parameter, processes in zip(replicated, has_gradient.tolist(), strict=True):
            if processes:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        collective.all_reduce_sum(gradients)

    def clip_gradients(self) -> Tensor:
        """Clip the gradient norm of the model and of each module; return the norm of all gradients before clipping."""
        norms: list[Tensor] = []
        for group in self._adam.param_groups:
            norm = nn.utils.clip_grad_norm_(group["params"], self._max_norm)
            # Without gradients, as in a critic's warm-up, the norm may be a zero on another device.
            norms.append(full_tensor(norm).to(self.parameters[0].device))
        return torch.stack(norms).norm()

    def step(self, lr: float) -> None:
        """Step the weights with learning rate `lr`, and drop the gradients."""
        for group in self._adam.param_groups:
            group["lr"] = lr * group["scale"]
        self._adam.step()
        self._master_weights.write_masters_to_model()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self._adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return each parameter's moments, step count and float32 master by name; no moments before the first step."""
        moments = self._adam.state_dict()["state"]
        state: dict[str, Any] = {self.names[index]: cpu_copy(values) for index, values in moments.items()}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if (master := self._master_weights.master_or_parameter(parameter)) is not parameter:
                state[name] = {**state.get(name, {}), "master": cpu_copy(master.detach())}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the moments and masters. Options such as betas are not restored: the scenario gives them.

        Raises:
            ValueError: if a name, a shape or a dtype fits no trained parameter.
        """
        if unknown := state.keys() - set(self.names):
            raise ValueError(f"optimizer state of {sorted(unknown)} fits no trained parameter")
        indexed: dict[int, Any] = {}
        masters: dict[nn.Parameter, Tensor | ShardedTensor] = {}
        for index, (name, parameter) in enumerate(zip(self.names, self.parameters, strict=True)):
            moments = dict(state.get(name, {}))
            stepped = self._master_weights.master_or_parameter(parameter).detach()
            if "master" in moments:
                masters[parameter] = moments.pop("master")
                check_same_tensors({name: masters[parameter]}, {name: stepped}, "master weights do not fit the model")
            if moments:
                # Torch would cast moments of another dtype silently. Packed moments of bitsandbytes cannot be checked.
                if isinstance(self._adam, torch.optim.AdamW):
                    step = torch.zeros((), dtype=torch.float32)
                    expected = {"exp_avg": stepped, "exp_avg_sq": stepped, "step": step}
                    check_same_tensors(moments, expected, f"optimizer state of {name!r} does not fit")
                # Torch would keep the given tensors as its own, and step them in place.
                indexed[index] = {key: copy_sharded_like(value, stepped) for key, value in moments.items()}
        self._master_weights.restore_masters(masters)
        self._adam.load_state_dict({"state": indexed, "param_groups": self._adam.state_dict()["param_groups"]})


class MasterWeights:
    """Float32 copies ("masters") of half-precision parameters, which the optimizer steps instead of the parameters.

    A bfloat16 number has 8 bits of mantissa, so a relative step of 1/1000 would be rounded away. The model computes
    with the rounded masters, as the sampler does. Each gradient moves to its master during the backward pass, so that
    gradients add up in float32. Wider parameters have no master.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._copies = {p: nn.Parameter(p.detach().float()) for p in parameters if p.dtype in HALF_PRECISION_TYPES}
        for parameter in self._copies:
            parameter.register_post_accumulate_grad_hook(self._move_gradient_to_float32_master)

    def master_or_parameter(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the tensor that the optimizer steps for `parameter`: its float32 master, or `parameter` itself."""
        return self._copies.get(parameter, parameter)

    @torch.no_grad()
    def write_masters_to_model(self) -> None:
        """Write the rounded masters into the model's parameters."""
        for parameter, master in self._copies.items():
            parameter.copy_(master)

    @torch.no_grad()
    def restore_masters(self, saved_masters: Mapping[nn.Parameter, Tensor | ShardedTensor]) -> None:
        """Restore `saved_masters`; a master that was not saved is set to the model's weights."""
        for parameter, master in self._copies.items():
            copy_full_or_own_rows(master, saved_masters.get(parameter, parameter))

    def _move_gradient_to_float32_master(self, parameter: Tensor) -> None:
        master = self._copies[parameter]  # type: ignore[index]  # hooks are typed for tensors of any kind
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad += parameter.grad
        parameter.grad = None


def schedule_progress(update_index: int, total_updates: int, warm_up_updates: int = 0) -> float:
    """Return the progress (0 to 1) of a schedule at the update with index `update_index`: 0 during `warm_up_updates`
    updates, then linear to the last step."""
    return min(1.0, max(0.0, (update_index - warm_up_updates) / max(1, total_updates - 1 - warm_up_updates)))


def scheduled_value(schedule: ScheduleShape, first_value: float, last_value: float, progress: float) -> float:
    """Return the value at `progress` (0 to 1) of a schedule from `first_value` to `last_value`.

    `inverse_sqrt`: first / sqrt(1 + c progress), with c such that the schedule ends at `last_value`. So 1 / value²
    grows linearly, as in magnetic mirror descent (2206.05825).
    """
    if schedule == "linear":
        return first_value + (last_value - first_value) * progress
    if schedule == "cosine":
        return last_value + (first_value - last_value) * (1 + math.cos(math.pi * progress)) / 2
    return first_value / math.sqrt(1 + ((first_value / last_value) ** 2 - 1) * progress)


def scheduled_lr(settings: ScheduledLearnerConfig, update_index: int, total_updates: int) -> float:
    """Return the learning rate of the update `update_index` (from 0): a linear warm-up to `lr`, then a schedule to
    `lr_end`."""
    if update_index < settings.warm_up:
        return settings.lr * (update_index + 1) / (settings.warm_up + 1)
    if settings.schedule == "constant":
        return settings.lr
    progress = schedule_progress(update_index, total_updates, settings.warm_up)
    return scheduled_value(settings.schedule, settings.lr, settings.lr_end or 0.0, progress)


def named_trained_tensors(model: nn.Module, *, include_frozen: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield the trained parameters of `model` by name; with `include_frozen`, all parameters.

    Tied parameters are yielded once. If all parameters are yielded, buffers of the state dict follow. Of a sharded
    parameter, this process's shard is yielded.
    """
    reshard(model)
    parameters = dict(model.named_parameters())
    selected = [(name, p.detach()) for name, p in parameters.items() if include_frozen or p.requires_grad]
    yield from selected
    if len(selected) == len(parameters) and (buffers := dict(model.named_buffers())):
        # Buffers that are not saved with the model are missing in the state dict, and so left out.
        for name, tensor in model.state_dict().items():
            if name in buffers:
                yield name, tensor


def cpu_copy(value: Any) -> Any:
    """Return a copy in main memory of a nested mapping of tensors. A shard becomes a `TensorShard`."""
    if isinstance(value, Mapping):
        return {name: cpu_copy(inner) for name, inner in value.items()}
    if not isinstance(value, Tensor):
        return value
    return cpu_shard(value) if isinstance(value, DTensor) else value.to("cpu", copy=True)


def copy_tensors_with_equal_names(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor | ShardedTensor]) -> None:
    """Copy the `sources` tensors into the `targets` of the same names; either may be sharded.

    Raises:
        ValueError: if names, shapes or dtypes differ; then nothing is changed.
    """
    check_same_tensors(sources, targets, "weights do not fit the model")
    for name, tensor in targets.items():
        copy_full_or_own_rows(tensor, sources[name])
