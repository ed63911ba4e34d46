"""Limits and defaults of vLLM, checked before weights are loaded. This module imports neither vLLM nor torch."""

from __future__ import annotations

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head widths supported by vLLM's attention on a CPU."""
DORA_UNSUPPORTED_MESSAGE = "vLLM has no DoRA; leave out use_dora, or use engine: {kind: transformers}"
SUPPORTED_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM allocates memory. An adapter of another rank takes the memory of the next higher rank."""
DEFAULT_CPU_CACHE_MIB = 256
"""Default size of the key-value cache on a CPU, in MiB."""
DEFAULT_GPU_MEMORY_SHARE = 0.5
"""Default share of a GPU's memory, weights included."""
DEFAULT_SPARE_ADAPTER_SLOTS = 2
"""Default number of slots for adapters added during a run."""


def cpu_head_width_error(head_dim: int) -> str | None:
    """Return an error message if vLLM does not support attention heads of width `head_dim` on a CPU, else None."""
    if head_dim in CPU_HEAD_DIMS:
        return None
    widths = ", ".join(map(str, CPU_HEAD_DIMS))
    return (
        f"its heads are {head_dim} wide, but on a processor vLLM computes attention for widths of {widths} alone; give "
        "a tiny model `head_dim: 32`, or the policy engine: {kind: transformers}"
    )


def round_up_to_supported_rank(rank: int) -> int:
    """Return the lowest rank in `SUPPORTED_LORA_RANKS` that is at least `rank`.

    Raises:
        ValueError: if `rank` exceeds the highest rank in `SUPPORTED_LORA_RANKS`.
    """
    for supported in SUPPORTED_LORA_RANKS:
        if rank <= supported:
            return supported
    raise ValueError(f"an adapter of rank {rank}, but vLLM holds ranks of at most {SUPPORTED_LORA_RANKS[-1]}")
