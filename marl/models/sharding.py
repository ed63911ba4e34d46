"""Sharding of weights over processes (FSDP2, `torch.distributed.fsdp.fully_shard`), and their full tensors.

If the weights are sharded, all processes of the group must call `shard_weights`, `full_tensor` and `reshard` together.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def shard_weights(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the weights of `module` over the processes of `mesh`, in place. Gradients are sums over processes.

    A language model is sharded layer by layer, so that one full layer exists at a time. The full embeddings stay in
    memory between a forward pass and its backward pass, because output distributions read them outside of the forward
    pass.
    """
    if isinstance(module, PreTrainedModel):
        # The layers are listed first, because sharding changes their classes.
        for layer in [inner for inner in module.modules() if isinstance(inner, GradientCheckpointingLayer)]:
            _shard_as_one_group(layer, mesh)
    elif not list(module.parameters(recurse=False)):
        for child in module.children():
            shard_weights(child, mesh)
        return
    _shard_as_one_group(module, mesh)


def _shard_as_one_group(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard all weights of `module` that are not sharded yet as one group, which is gathered as a whole."""
    sharded = fully_shard(module, mesh=mesh)
    # Gradients are summed, not averaged: each loss is already divided by the full minibatch's denominator.
    sharded.set_gradient_divide_factor(1.0)
    # The gloo backend can only reduce by sums.
    sharded.set_force_sum_reduction_for_comms(True)


def reshard(module: nn.Module) -> None:
    """Free the full weights of `module` that a forward pass without a backward pass has left in memory."""
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            inner.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return `tensor`, gathered from all processes if it is a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Tensor, sharded_tensor: Tensor) -> Tensor:
    """Return the full tensor `value` as a shard if `sharded_tensor` is one of equal full shape, else `value` itself."""
    if not isinstance(sharded_tensor, DTensor) or isinstance(value, DTensor) or value.shape != sharded_tensor.shape:
        return value
    return distribute_tensor(
        value.to(sharded_tensor.device), sharded_tensor.device_mesh, sharded_tensor.placements, src_data_rank=None
    )


def is_shard(tensor: Tensor) -> bool:
    """Return True if `tensor` is a shard of a tensor that is distributed over processes."""
    return isinstance(tensor, DTensor)


def is_sharded(module: nn.Module) -> bool:
    """Return True if the weights of `module` are sharded over processes."""
    return isinstance(module, FSDPModule)
