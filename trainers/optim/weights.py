"""A model's tensors by name: to publish, to keep, to put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What learning changes: parameters, tied ones once, and saved buffers. Of an adapter on a frozen base, its own."""
    parameters = dict(model.named_parameters())
    learnt = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    yield from ((name, parameter.detach()) for name, parameter in learnt.items())
    buffers = dict(model.named_buffers())
    if buffers and len(learnt) == len(parameters):
        yield from ((name, tensor) for name, tensor in model.state_dict().items() if name in buffers)


def save_weights(model: Any, folder: Path) -> None:
    """A Hugging Face folder; of an adapter on a frozen base, a PEFT folder."""
    if all(parameter.requires_grad for parameter in model.parameters()):
        model.save_pretrained(folder)
    else:
        from marl.models.lora import save_adapter

        save_adapter(model, folder)


def snapshot(own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy in main memory, which later updates do not change."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in own.items()}


@torch.no_grad()
def restore(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into a model's `own`, whose names must be the same."""
    if own.keys() != tensors.keys():
        raise ValueError(f"weights do not fit the model: {sorted(own.keys() ^ tensors.keys())} are only on one side")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])
