"""Weights in shards, one in each process (FSDP2, `torch.distributed.fsdp.fully_shard`), and whole tensors from them.

Every function here but `lay_out` waits for all processes of a group if there are shards, so all must call it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the module's weights in place: a language model's layer by layer, so that one is whole at a time.

    Embeddings stay whole between a forward and its backward pass: the output's distributions, which are computed a few
    tokens at a time, read them outside of the model's own forward pass. Gradients are sums over processes.
    """
    if isinstance(module, PreTrainedModel):
        for layer in [inner for inner in module.modules() if isinstance(inner, GradientCheckpointingLayer)]:
            _shard(layer, mesh)
    elif not list(module.parameters(recurse=False)):
        for child in module.children():
            shard(child, mesh)
        return
    _shard(module, mesh)


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    sharded = fully_shard(module, mesh=mesh)
    sharded.set_gradient_divide_factor(1.0)  # a sum: denominators are those of the whole minibatch
    sharded.set_force_sum_reduction_for_comms(True)  # gloo knows no others


def settle(module: nn.Module) -> None:
    """Free weights that a pass without backward left whole: `module.parameters()` are the shards again."""
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            inner.reshard()


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def lay_out(value: Tensor, like: Tensor) -> Tensor:
    """Return `value`, which is whole in every process, as a shard if `like` is one of the same shape."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def is_shard(tensor: Tensor) -> bool:
    """Return True for a shard of a tensor."""
    return isinstance(tensor, DTensor)


def is_sharded(module: nn.Module) -> bool:
    """Return True if the module's weights are shards."""
    return isinstance(module, FSDPModule)
