"""Published weights in GPU memory: other processes on the same GPU read a copy there, through CUDA IPC.

Ray's own transport of tensors (2.60, alpha) is not used: only actors can share tensors with it, and here the run does.
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

_ALIGNMENT = 256
"""Alignment of each tensor's offset in the shared buffer, in bytes (as in torch's allocator)."""
_DEVICE = 6
"""Index of the device among the arguments of `rebuild_cuda_tensor`."""


class TensorRegion(NamedTuple):
    """Region of a tensor in the shared buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset of its first byte."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GpuWeightsHandle:
    """Handle to weights in GPU memory, for other processes on this GPU."""

    gpu: str
    """UUID of the GPU."""
    layout: tuple[TensorRegion, ...]
    ipc_arguments: tuple[Any, ...]
    """Arguments of torch's `rebuild_cuda_tensor`, with the handle of CUDA IPC."""


class SharedGpuBuffer:
    """GPU memory that other processes can open."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)

    @cached_property
    def handle(self) -> tuple[Any, ...]:
        """Return the arguments of `rebuild_cuda_tensor`, computed once: torch counts the handles in use."""
        return reduce_tensor(self.bytes)[1]


class SharedGpuWeights:
    """A copy of weights on their GPU, unchanged during the life of this object."""

    def __init__(self, layout: tuple[TensorRegion, ...], buffer: SharedGpuBuffer) -> None:
        self.gpu = gpu_uuid(buffer.bytes.device)
        self._layout, self.buffer = layout, buffer

    def handle(self) -> GpuWeightsHandle:
        """Return a handle for `open_handle` in another process."""
        return GpuWeightsHandle(self.gpu, self._layout, self.buffer.handle)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the weights in this process."""
        return views(self._layout, self.buffer.bytes)


class GpuBufferPool:
    """Copies weights into shared GPU buffers and reuses the buffers afterwards."""

    def __init__(self) -> None:
        self._free: list[SharedGpuBuffer] = []
        """Buffers without readers. They are never freed: with CUDA IPC, a reader that was killed would keep the memory
        for ever. The newest weights stay for late readers, so their successors need a second buffer."""

    def share(self, tensors: Mapping[str, Tensor]) -> SharedGpuWeights:
        """Return a shared copy of the weights, all on one GPU."""
        device = next(iter(tensors.values())).device
        layout = plan_layout(tensors)
        buffer = self._buffer(layout[-1].offset + layout[-1].nbytes, device)
        for (_, copy), tensor in zip(views(layout, buffer.bytes), tensors.values(), strict=True):
            copy.copy_(tensor.detach())
        # Readers in other processes do not wait for this process's stream.
        torch.cuda.current_stream(device).synchronize()
        weights = SharedGpuWeights(layout, buffer)
        weakref.finalize(weights, self._free.append, buffer)
        return weights

    def _buffer(self, size: int, device: torch.device) -> SharedGpuBuffer:
        for index, buffer in enumerate(self._free):
            if buffer.bytes.numel() == size and buffer.bytes.device == device:
                return self._free.pop(index)
        return SharedGpuBuffer(size, device)


def on_one_gpu(tensors: Mapping[str, Tensor]) -> bool:
    """Return True if there are weights and all of them are on the same GPU."""
    devices = {tensor.device for tensor in tensors.values()}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"


def open_handle(handle: GpuWeightsHandle) -> list[tuple[str, Tensor]]:
    """Return the weights shared by another process. Drop them before you report them as loaded.

    Raises:
        ValueError: if the GPU is not visible to this process.
    """
    gpus = visible_gpus()
    if handle.gpu not in gpus:
        raise ValueError(f"weights are on GPU {handle.gpu}, and this process sees {', '.join(gpus) or 'none'}")
    arguments = list(handle.ipc_arguments)
    # A GPU's index differs between processes, by their CUDA_VISIBLE_DEVICES.
    arguments[_DEVICE] = gpus.index(handle.gpu)
    return views(handle.layout, rebuild_cuda_tensor(*arguments))


def visible_gpus() -> list[str]:
    """Return the UUIDs of the GPUs visible to this process, by index."""
    return [gpu_uuid(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]


def gpus_in_use() -> frozenset[str]:
    """Return the UUIDs of the GPUs visible to this process, or none if the process does not use CUDA."""
    # A query alone would initialise CUDA, which takes memory on each GPU.
    return frozenset(visible_gpus() if torch.cuda.is_initialized() else ())


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a GPU, equal in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def plan_layout(tensors: Mapping[str, Tensor]) -> tuple[TensorRegion, ...]:
    """Return consecutive regions for the tensors."""
    regions: list[TensorRegion] = []
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        regions.append(TensorRegion(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, size))
        offset = -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT  # rounded up
    return tuple(regions)


def views(layout: Sequence[TensorRegion], buffer: Tensor) -> list[tuple[str, Tensor]]:
    """Return the tensors of these regions of `buffer` (bytes), without a copy."""
    tensors: list[tuple[str, Tensor]] = []
    for region in layout:
        data = buffer[region.offset : region.offset + region.nbytes]
        tensors.append((region.name, data.view(getattr(torch, region.dtype)).view(region.shape)))
    return tensors
