"""Limits and defaults of vLLM, checked before a weight is loaded. Light: nothing here imports vLLM or torch."""

from __future__ import annotations

from typing import Any

from marl.engines.vllm.installation import is_cpu_build
from marl.models.pretrained import PretrainedSource

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head widths supported by vLLM's attention on a CPU."""
NO_DORA = "vLLM has no DoRA; leave out use_dora, or use engine: {kind: transformers}"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM allocates adapters; an adapter takes the next higher rank."""
CPU_CACHE_MIB = 256
"""Default size of the key-value cache on a CPU, in MiB."""
GPU_SHARE = 0.5
"""Default share of a GPU's memory, weights included."""
SPARE_ADAPTERS = 2
"""Default number of slots for adapters added during a run."""


def check_heads(source: PretrainedSource, config: Any) -> None:
    """Check that vLLM can compute the attention of the model with this `config`.

    Raises:
        ValueError: if it cannot. vLLM itself would load the model and fail at the first forward.
    """
    text = config.get_text_config()
    width = text.to_dict().get("head_dim") or text.hidden_size // text.num_attention_heads
    problem = head_problem(width) if is_cpu_build() else None
    if problem:
        raise source.error(problem)


def head_problem(width: int) -> str | None:
    """Return an error message about attention heads of this width on a CPU, or None if vLLM supports them."""
    if width in CPU_HEAD_DIMS:
        return None
    widths = ", ".join(map(str, CPU_HEAD_DIMS))
    return (
        f"its heads are {width} wide, but on a processor vLLM computes attention for widths of {widths} alone; give "
        "a tiny model `head_dim: 32`, or the policy engine: {kind: transformers}"
    )


def supported_rank(rank: int) -> int:
    """Return the lowest rank in `RANKS` that holds adapters of `rank`.

    Raises:
        ValueError: if `rank` exceeds the highest of them.
    """
    for supported in RANKS:
        if rank <= supported:
            return supported
    raise ValueError(f"an adapter of rank {rank}, but vLLM holds ranks of at most {RANKS[-1]}")
