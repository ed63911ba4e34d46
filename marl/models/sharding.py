"""Sharding of weights over processes (FSDP2, `torch.distributed.fsdp.fully_shard`), and their full tensors.

If the weights are sharded, all processes of the group must call `shard_weights`, `full_tensor` and `reshard` together.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from marl.core.state_shares import ShardedTensor, TensorShard


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
    if not dist.is_initialized():
        return  # nothing is sharded, and the walk through all modules would take milliseconds
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            inner.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Return `tensor`, gathered from all processes if it is a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cpu_shard(sharded_tensor: DTensor) -> TensorShard:
    """Return a copy, in main memory, of this process's rows of `sharded_tensor`; no other process takes part."""
    start, _ = _own_rows(sharded_tensor)
    with torch.no_grad():
        rows = sharded_tensor.to_local().to("cpu", copy=True)
    return TensorShard(rows, start, sharded_tensor.shape[0])


@torch.no_grad()
def copy_full_or_own_rows(target: Tensor, source: Tensor | ShardedTensor) -> None:
    """Copy `source`, of the same full shape, into `target`; into a shard, only the rows of this process.

    If `source` alone is a shard of a model in memory, it is gathered: then all processes must call this together.
    """
    if isinstance(source, DTensor):
        target.copy_(source if isinstance(target, DTensor) else source.full_tensor())
        return
    if isinstance(target, DTensor):
        start, stop = _own_rows(target)
        target.to_local().copy_(source.rows(start, stop) if isinstance(source, ShardedTensor) else source[start:stop])
        return
    target.copy_(source.full() if isinstance(source, ShardedTensor) else source)


def copy_sharded_like(source: Tensor | ShardedTensor, target: Tensor) -> Tensor:
    """Return a copy of `source`: a shard if `target` is a shard of the same full shape, else the full tensor."""
    if isinstance(target, DTensor) and tuple(source.shape) == tuple(target.shape):
        copy = torch.empty_like(target, dtype=source.dtype)
        copy_full_or_own_rows(copy, source)
        return copy
    return source.full() if isinstance(source, ShardedTensor) else source.clone()


def _own_rows(sharded_tensor: DTensor) -> tuple[int, int]:
    """Return the indices of the first row of this process's shard, and of the row after its last one.

    As `torch.chunk` does, FSDP2 gives the first processes equally many rows, rounded up, and the last ones the rest.
    """
    mesh, row_count = sharded_tensor.device_mesh, sharded_tensor.shape[0]
    assert sharded_tensor.placements == (Shard(0),), sharded_tensor.placements
    chunk = -(-row_count // mesh.size())
    start, stop = (min((mesh.get_local_rank() + offset) * chunk, row_count) for offset in (0, 1))
    assert sharded_tensor.to_local().shape[0] == stop - start
    return start, stop


def is_shard(tensor: Tensor) -> bool:
    """Return True if `tensor` is a shard of a tensor that is distributed over processes."""
    return isinstance(tensor, DTensor)


def is_sharded(module: nn.Module) -> bool:
    """Return True if the weights of `module` are sharded over processes."""
    return isinstance(module, FSDPModule)
