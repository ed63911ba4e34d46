"""Copies of published weights in one buffer, in GPU memory or in main memory.

Other processes on the same GPU read a copy in GPU memory through CUDA IPC; `marl.cluster.weight_broadcast` sends copies
to other GPUs and machines.

Ray's own transport of tensors (2.60, alpha) is not used, because with it only actors can share tensors.
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
_DEVICE_ARGUMENT = 6
"""Position of the device among the arguments of `rebuild_cuda_tensor`."""


class TensorRegion(NamedTuple):
    """Position, dtype and shape of a tensor in the shared buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Offset of the tensor's first byte in the buffer."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GpuWeightsHandle:
    """Handle by which another process on the same GPU opens shared weights."""

    gpu: str
    """UUID of the GPU."""
    layout: tuple[TensorRegion, ...]
    """Positions of the weights in the shared buffer."""
    ipc_arguments: tuple[Any, ...]
    """Arguments of torch's `rebuild_cuda_tensor` for the shared buffer, with its handle of CUDA IPC."""


class WeightBuffer:
    """Buffer of `size` bytes for weights, in main memory or on a GPU, where other processes can open it (CUDA IPC)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)

    @cached_property
    def cuda_ipc_arguments(self) -> tuple[Any, ...]:
        """Arguments of `rebuild_cuda_tensor`, computed once because torch counts the handles in use."""
        return reduce_tensor(self.bytes)[1]


class WeightsCopy:
    """Copy of weights in a buffer on their device; unchanged during the life of this object."""

    def __init__(self, layout: tuple[TensorRegion, ...], buffer: WeightBuffer) -> None:
        self.gpu = gpu_uuid(buffer.bytes.device) if buffer.bytes.is_cuda else ""
        """UUID of the GPU, or "" for a copy in main memory."""
        self.layout, self.buffer = layout, buffer

    def handle(self) -> GpuWeightsHandle:
        """Return the handle that another process passes to `open_shared_weights`."""
        return GpuWeightsHandle(self.gpu, self.layout, self.buffer.cuda_ipc_arguments)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the names and tensors of the shared weights, for this process."""
        return tensor_views(self.layout, self.buffer.bytes)


class WeightBufferPool:
    """Pool of buffers for copies of weights."""

    def __init__(self) -> None:
        self._free: list[WeightBuffer] = []
        """Unused buffers. They are reused and never freed: with CUDA IPC, a killed reader would hold freed memory for
        ever. A second buffer is needed, because the newest weights stay for late readers."""

    def copy_to_buffer(self, tensors: Mapping[str, Tensor]) -> WeightsCopy:
        """Return a copy of `tensors`, which must all be on one device."""
        device = next(iter(tensors.values())).device
        layout = plan_buffer_layout(tensors)
        size = layout[-1].offset + layout[-1].nbytes
        for index, buffer in enumerate(self._free):
            if buffer.bytes.numel() == size and buffer.bytes.device == device:
                del self._free[index]
                break
        else:
            buffer = WeightBuffer(size, device)
        for (_, copy), tensor in zip(tensor_views(layout, buffer.bytes), tensors.values(), strict=True):
            copy.copy_(tensor.detach())
        if device.type == "cuda":
            # The copy must be complete, because readers in other processes do not wait for this process's CUDA stream.
            torch.cuda.current_stream(device).synchronize()
        weights = WeightsCopy(layout, buffer)
        weakref.finalize(weights, self._free.append, buffer)
        return weights


def common_device(tensors: Mapping[str, Tensor]) -> torch.device | None:
    """Return the device of all `tensors`, or None if there are no tensors or several devices."""
    devices = {tensor.device for tensor in tensors.values()}
    return next(iter(devices)) if len(devices) == 1 else None


def open_shared_weights(handle: GpuWeightsHandle) -> list[tuple[str, Tensor]]:
    """Return names and tensors of weights that another process shares. Drop the tensors before reporting them loaded.

    Raises:
        ValueError: if the GPU is not visible to this process.
    """
    gpus = visible_gpu_uuids()
    if handle.gpu not in gpus:
        raise ValueError(f"weights are on GPU {handle.gpu}, and this process sees {', '.join(gpus) or 'none'}")
    arguments = list(handle.ipc_arguments)
    # A GPU has another index in each process with another CUDA_VISIBLE_DEVICES, so its index is looked up by UUID.
    arguments[_DEVICE_ARGUMENT] = gpus.index(handle.gpu)
    return tensor_views(handle.layout, rebuild_cuda_tensor(*arguments))


def visible_gpu_uuids() -> list[str]:
    """Return the UUIDs of the GPUs visible to this process, by index."""
    return [gpu_uuid(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]


def used_gpu_uuids() -> frozenset[str]:
    """Return the UUIDs of the GPUs visible to this process if it uses CUDA, else none."""
    # The UUIDs are asked for only after CUDA has been initialised: initialising it takes memory on each GPU.
    return frozenset(visible_gpu_uuids() if torch.cuda.is_initialized() else ())


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a GPU, which is equal in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def plan_buffer_layout(tensors: Mapping[str, Tensor]) -> tuple[TensorRegion, ...]:
    """Return the tensors' positions in one buffer, one after the other."""
    regions: list[TensorRegion] = []
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        regions.append(TensorRegion(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset, size))
        offset = -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT  # rounded up
    return tuple(regions)


def tensor_views(tensor_regions: Sequence[TensorRegion], byte_buffer: Tensor) -> list[tuple[str, Tensor]]:
    """Return the names and tensors at the positions `tensor_regions` of a byte buffer, without a copy."""
    tensors: list[tuple[str, Tensor]] = []
    for region in tensor_regions:
        data = byte_buffer[region.offset : region.offset + region.nbytes]
        tensors.append((region.name, data.view(getattr(torch, region.dtype)).view(region.shape)))
    return tensors
