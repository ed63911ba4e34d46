"""Memory of a device: a processor or GPU of this machine, or a device of a given size."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB|kB|KB|MB|GB|TB|B)", re.IGNORECASE)
_BINARY_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNIT_BYTES = {**_BINARY_UNITS, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_CUDA = re.compile(r"cuda(?::(\d+))?")
_SPARE_SHARE = 0.08
"""Share of a device's memory that must stay free for gaps between tensors, which the allocator cannot use."""
_PROCESS_BYTES = {"cpu": 0.6e9, "cuda": 0.6e9}
"""Memory of a process before it holds a model [bytes]: interpreter and libraries, or CUDA's context and kernels."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Name and memory of one device."""

    name: str
    bytes: float
    """Total memory of the device [bytes]."""

    @property
    def is_cpu(self) -> bool:
        """True if the device is the processor, whose memory also holds copies made for saving a checkpoint."""
        return self.name == "cpu"

    @property
    def gpu_bytes(self) -> float | None:
        """Memory of a GPU [bytes], or None if the device is the processor."""
        return None if self.is_cpu else self.bytes

    @property
    def process_overhead_bytes(self) -> float:
        """Memory that a process takes on the device before it loads a model [bytes]."""
        return _PROCESS_BYTES["cpu" if self.is_cpu else "cuda"]

    @property
    def usable_bytes(self) -> float:
        """Memory of the device that models, optimizers and activations may take [bytes]."""
        return (1 - _SPARE_SHARE) * self.bytes - self.process_overhead_bytes


def device_memory(device_name: str) -> DeviceMemory:
    """Return the memory of `cpu`, of `cuda` or `cuda:N`, or of a device of a size such as `80GiB`.

    Raises:
        ValueError: if `device_name` is none of these, or names a GPU that this machine does not have.
    """
    if device_name == "cpu":
        return DeviceMemory(device_name, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if matched := _SIZE.fullmatch(device_name):
        size = float(matched[1]) * _UNIT_BYTES[matched[2].lower()]
        if size > 0:
            return DeviceMemory(device_name, size)
    if not (cuda := _CUDA.fullmatch(device_name)):
        choices = "choices: cpu, cuda:0 (or another number), a size such as 80GiB"
        raise ValueError(f"--device: {device_name!r} is no device; {choices}")

    import torch  # imported late, because only CUDA devices need it and `marl check` must start fast

    index, count = int(cuda[1] or 0), torch.cuda.device_count()
    if index >= count:
        problem = f"there are {count} CUDA devices here" if count else "there is no CUDA device here"
        raise ValueError(
            f"--device: {device_name!r}: {problem}; choices: cpu, or the size of its memory, such as 80GiB"
        )
    return DeviceMemory(device_name, float(torch.cuda.get_device_properties(index).total_memory))
