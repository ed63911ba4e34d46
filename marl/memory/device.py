"""Memory of a device: a device of this machine, or a device of a given size."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|TiB|kB|KB|MB|GB|TB|B)", re.IGNORECASE)
_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_CUDA = re.compile(r"cuda(?::(\d+))?")
_SPARE = 0.08
"""Share of a device's memory that stays free: an allocator does not fill the gaps between tensors."""
_PROCESS = {"cpu": 0.6e9, "cuda": 0.6e9}
"""Memory of a process before it holds a model [bytes]: interpreter and libraries, or CUDA's context and kernels."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device."""

    name: str
    bytes: float

    @property
    def is_cpu(self) -> bool:
        """True if the device is the processor, whose memory also holds the copies made while a checkpoint is saved."""
        return self.name == "cpu"

    @property
    def gpu_bytes(self) -> float | None:
        """Memory of a GPU [bytes], or None if the device is the processor."""
        return None if self.is_cpu else self.bytes

    @property
    def process_bytes(self) -> float:
        """Memory that the process takes before a model is loaded [bytes]."""
        return _PROCESS["cpu" if self.is_cpu else "cuda"]

    @property
    def usable_bytes(self) -> float:
        """Memory that a run may plan with [bytes]."""
        return (1 - _SPARE) * self.bytes - self.process_bytes


def device_memory(name: str) -> DeviceMemory:
    """Return the memory of `cpu`, of `cuda` or `cuda:N`, or of a device of a size such as `80GiB`.

    Raises:
        ValueError: if `name` is none of these, or names a GPU that this machine does not have.
    """
    if name == "cpu":
        return DeviceMemory(name, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if matched := _SIZE.fullmatch(name):
        size = float(matched[1]) * _UNITS[matched[2].lower()]
        if size > 0:
            return DeviceMemory(name, size)
    if not (cuda := _CUDA.fullmatch(name)):
        choices = "choices: cpu, cuda:0 (or another number), a size such as 80GiB"
        raise ValueError(f"--device: {name!r} is no device; {choices}")

    import torch  # here, so that `marl check` without a CUDA device stays light

    index, count = int(cuda[1] or 0), torch.cuda.device_count()
    if index >= count:
        problem = f"there are {count} CUDA devices here" if count else "there is no CUDA device here"
        raise ValueError(f"--device: {name!r}: {problem}; choices: cpu, or the size of its memory, such as 80GiB")
    return DeviceMemory(name, float(torch.cuda.get_device_properties(index).total_memory))
