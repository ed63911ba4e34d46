"""A model's tensors by name: to publish, to keep, to put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers; tied ones once."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()
    buffers = dict(model.named_buffers())
    if buffers:
        yield from ((name, tensor) for name, tensor in model.state_dict().items() if name in buffers)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy in main memory, which later updates do not change."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in named_tensors(model)}


@torch.no_grad()
def restore(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into the model, whose names must be the same."""
    own = dict(named_tensors(model))
    if own.keys() != tensors.keys():
        raise ValueError(f"weights do not fit the model: {sorted(own.keys() ^ tensors.keys())} are only on one side")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])
