"""Published weights that stay on a GPU: other processes on the same GPU read a copy of them there, through CUDA IPC.

Ray's own transport of tensors (2.60, alpha) is not used: there only an actor can lend tensors, and here the run lends.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

_ALIGNED = 256
"""Bytes of which the place of every tensor is a multiple, as those of torch's own are."""
_DEVICE = 6
"""Position of the device among the arguments of `rebuild_cuda_tensor`: a GPU has another number in another process."""


class TensorPlace(NamedTuple):
    """Place of a tensor among the bytes of all."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    """Its first byte."""
    size: int
    """Its bytes."""


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """Weights in the memory of a GPU, for other processes that use it."""

    gpu: str
    """UUID of the GPU."""
    layout: tuple[TensorPlace, ...]
    memory: tuple[Any, ...]
    """Arguments of torch's `rebuild_cuda_tensor`; they hold the handle of CUDA IPC."""


class GpuMemory:
    """Memory of a GPU that other processes may open."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)

    @cached_property
    def handle(self) -> tuple[Any, ...]:
        """Return what a process needs to open it: the same each time, as torch counts the handles that it gives out."""
        return reduce_tensor(self.bytes)[1]


class LentWeights:
    """A copy of weights on their GPU, which nobody changes as long as this object lives."""

    def __init__(self, layout: tuple[TensorPlace, ...], memory: GpuMemory) -> None:
        self.gpu = uuid_of(memory.bytes.device)
        self._layout, self._memory = layout, memory

    def handle(self) -> GpuHandle:
        """Return what another process opens with `opened`."""
        return GpuHandle(self.gpu, self._layout, self._memory.handle)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the weights in this process."""
        return views(self._layout, self._memory.bytes)


class Lender:
    """Copies weights into memory of their GPU for others to read, and uses that memory again afterwards."""

    def __init__(self) -> None:
        self._free: list[GpuMemory] = []
        """Memory that nobody reads any more. It is never given back: with CUDA IPC, a reader that was killed would keep
        it for ever. While the newest weights are kept for readers yet to come, the next ones need as much again."""

    def lend(self, tensors: Mapping[str, Tensor]) -> LentWeights:
        """Return a copy of the weights, all of one GPU."""
        device = next(iter(tensors.values())).device
        layout = laid_out(tensors)
        memory = self._memory(layout[-1].first + layout[-1].size, device)
        for (_, copy), tensor in zip(views(layout, memory.bytes), tensors.values(), strict=True):
            copy.copy_(tensor.detach())
        torch.cuda.current_stream(device).synchronize()  # readers know nothing of this process's stream
        lent = LentWeights(layout, memory)
        weakref.finalize(lent, self._free.append, memory)
        return lent

    def _memory(self, size: int, device: torch.device) -> GpuMemory:
        for index, memory in enumerate(self._free):
            if memory.bytes.numel() == size and memory.bytes.device == device:
                return self._free.pop(index)
        return GpuMemory(size, device)


def on_one_gpu(tensors: Mapping[str, Tensor]) -> bool:
    """Return True if all of the weights, and there are some, are on the same GPU."""
    devices = {tensor.device for tensor in tensors.values()}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"


def opened(handle: GpuHandle) -> list[tuple[str, Tensor]]:
    """Return the weights that another process lends. Drop them before you tell it that you have them.

    Raises:
        ValueError: if this process does not see that GPU.
    """
    gpus = gpus_here()
    if handle.gpu not in gpus:
        raise ValueError(f"weights are on GPU {handle.gpu}, and this process sees {', '.join(gpus) or 'none'}")
    arguments = list(handle.memory)
    arguments[_DEVICE] = gpus.index(handle.gpu)
    return views(handle.layout, rebuild_cuda_tensor(*arguments))


def gpus_here() -> list[str]:
    """Return the UUIDs of the GPUs that this process sees, in its order."""
    return [uuid_of(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]


def gpus_in_use() -> frozenset[str]:
    """Return the UUIDs of the GPUs that this process sees, if it uses any; looking alone would take memory on each."""
    return frozenset(gpus_here() if torch.cuda.is_initialized() else ())


def uuid_of(device: torch.device) -> str:
    """Return the UUID of a GPU, by which all processes know it."""
    return str(torch.cuda.get_device_properties(device).uuid)


def laid_out(tensors: Mapping[str, Tensor]) -> tuple[TensorPlace, ...]:
    """Return a place for each tensor, one after the other."""
    places: list[TensorPlace] = []
    first = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        places.append(TensorPlace(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), first, size))
        first = -(-(first + size) // _ALIGNED) * _ALIGNED
    return tuple(places)


def views(layout: Sequence[TensorPlace], memory: Tensor) -> list[tuple[str, Tensor]]:
    """Return the tensors whose places in `memory`, plain bytes, are these."""
    return [
        (each.name, memory[each.first : each.first + each.size].view(getattr(torch, each.dtype)).view(each.shape))
        for each in layout
    ]
