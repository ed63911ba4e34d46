"""Weights in shards, one shard in each process (FSDP2, `torch.distributed.fsdp.fully_shard`), and their full tensors.

`shard`, `full_tensor` and `reshard` are collective: with shards, all processes of the group must call them.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the module's weights in place; a language model by layer, so that one full layer exists at a time.

    Full embeddings stay in memory between a forward pass and its backward pass, because the output distributions read
    them outside of the model's own forward pass. Gradients are sums over processes.
    """
    if isinstance(module, PreTrainedModel):
        # Sharding changes classes of modules, so the list is complete before the first change.
        for layer in [inner for inner in module.modules() if isinstance(inner, GradientCheckpointingLayer)]:
            _shard(layer, mesh)
    elif not list(module.parameters(recurse=False)):
        for child in module.children():
            shard(child, mesh)
        return
    _shard(module, mesh)


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    sharded = fully_shard(module, mesh=mesh)
    sharded.set_gradient_divide_factor(1.0)  # a sum: losses are divided by the denominators of the full minibatch
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction


def reshard(module: nn.Module) -> None:
    """Free the full weights that a forward pass without backward left in memory; parameters are shards again."""
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            inner.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of `tensor`, which may be a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the full tensor `value` as a shard if `like` is a shard of the same full shape, else unchanged."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def is_shard(tensor: Tensor) -> bool:
    """Return True if `tensor` is a shard."""
    return isinstance(tensor, DTensor)


def is_sharded(module: nn.Module) -> bool:
    """Return True if the module's weights are shards."""
    return isinstance(module, FSDPModule)
