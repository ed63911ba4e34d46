"""Memory of a device: of one that is here, or of a size that is given."""

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
"""Bytes that a process takes before it holds a model: interpreter and libraries, or CUDA's context and kernels."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device."""

    name: str
    bytes: float

    @property
    def is_cpu(self) -> bool:
        """True if what is saved is copied in this memory, too."""
        return self.name == "cpu"

    @property
    def gpu_bytes(self) -> float | None:
        """Memory of a GPU; None of a processor's."""
        return None if self.is_cpu else self.bytes

    @property
    def process(self) -> float:
        """Bytes that are taken before there is a model."""
        return _PROCESS["cpu" if self.is_cpu else "cuda"]

    @property
    def room(self) -> float:
        """Bytes that a run may plan with."""
        return (1 - _SPARE) * self.bytes - self.process


def device_memory(name: str) -> DeviceMemory:
    """Return the memory of `cpu`, of `cuda` or `cuda:N`, or of a device of a size such as `80GiB`.

    Raises:
        ValueError: if it is none of these, or not here.
    """
    if name == "cpu":
        return DeviceMemory(name, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if matched := _SIZE.fullmatch(name):
        size = float(matched[1]) * _UNITS[matched[2].lower()]
        if size > 0:
            return DeviceMemory(name, size)
    if cuda := _CUDA.fullmatch(name):
        return DeviceMemory(name, _cuda_bytes(name, int(cuda[1] or 0)))
    raise ValueError(f"--device: {name!r} is no device; choices: cpu, cuda:0 (or another number), a size such as 80GiB")


def _cuda_bytes(name: str, index: int) -> float:
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        problem = f"there are {count} CUDA devices here" if count else "there is no CUDA device here"
        raise ValueError(f"--device: {name!r}: {problem}; choices: cpu, or the size of its memory, such as 80GiB")
    return float(torch.cuda.get_device_properties(index).total_memory)
