"""Memory that vLLM takes, worked out from sizes. Light: nothing here imports vLLM or torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl.engines.vllm.limits import rank_room
from marl.protocols.memory import FLOAT32, MemoryUse, ModelSize, Workload, base_uses

if TYPE_CHECKING:
    from marl.engines.vllm.settings import VLLM

CPU_CACHE_MIB = 256
"""Cache of keys and values on a processor, in MiB, unless the settings say otherwise."""
GPU_SHARE = 0.5
"""Share of a GPU's memory, weights included, unless the settings say otherwise."""
SPARE_ADAPTERS = 2
"""Places for adapters that are added later."""
SHARE, TOO_SMALL = "vLLM's share of memory", "is less than it must hold: give it a greater memory_share"
TABLES = 4.0
"""Float32 tables of completions by vocabulary while tokens are drawn: logits, probabilities, their random divisors, and
log-probabilities."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def engine_uses(
    settings: VLLM, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None
) -> Iterator[MemoryUse]:
    """Yield what vLLM takes for policies of these sizes: its share of the device, or the sum of its parts.

    `device_bytes`: memory of a GPU; None: on a processor. A share that is too small takes an infinity of bytes.
    """
    parts = _Parts(settings, sizes, work, on_gpu=device_bytes is not None)
    yield from base_uses(sizes[0])  # adapters are made on a base of Transformers before vLLM is given them
    if parts.settings.kv_cache_mib or (device_bytes is None and settings.memory_share is None):
        yield MemoryUse("weights in vLLM", parts.weights)
        yield MemoryUse("adapters in vLLM", parts.adapters)
        yield MemoryUse("keys and values", (settings.kv_cache_mib or CPU_CACHE_MIB) * 2**20)
        yield MemoryUse("reading prompts or drawing tokens", parts.passing, "play")
        return
    share = (settings.memory_share or GPU_SHARE) * (device_bytes or _host_bytes())
    least = parts.weights + parts.adapters + parts.passing
    yield MemoryUse(SHARE, share) if share > least else MemoryUse(f"{SHARE} {TOO_SMALL}", math.inf)


@dataclass(frozen=True)
class _Parts:
    """Bytes of an engine's parts on each of its devices."""

    settings: VLLM
    sizes: Sequence[ModelSize]
    work: Workload
    on_gpu: bool

    @property
    def width(self) -> int:
        """Bytes of a number in vLLM."""
        return _BYTES[self.settings.dtype] if self.settings.dtype else self.sizes[0].weight_bytes

    @property
    def weights(self) -> float:
        """Weights; on a processor, those of the output a second time, in the order in which products read them."""
        size = self.sizes[0]
        packed = 0 if self.on_gpu else size.vocabulary * size.hidden
        return self.width * (size.weights + packed) / self.settings.tensor_parallel

    @property
    def adapters(self) -> float:
        """Adapters: places for the most that there may be and an empty one, and each as it was read; ours in float32,
        from which they are written for vLLM."""
        held = [size.adapter for size in self.sizes if size.adapter]
        if not held:
            return 0.0
        most = self.settings.max_adapters or len(held) + SPARE_ADAPTERS
        largest = max(held, key=lambda adapter: adapter.weights)
        place = largest.weights * rank_room(largest.rank) / largest.rank
        read = sum(adapter.weights for adapter in held)
        return self.width * ((most + 1) * place + read) + FLOAT32 * read

    @property
    def passing(self) -> float:
        """States of one layer while prompts are read, or tables of those who get a token."""
        size, work, settings = self.sizes[0], self.work, self.settings
        tokens = min(work.prompts * work.prompt, max(settings.prefill_tokens, settings.max_sequences))
        states = 3 * size.hidden + max(2 * size.queries + 2 * size.keys, 3 * size.inner)
        rows = min(work.rows, settings.max_sequences)
        tables = rows * size.vocabulary * (FLOAT32 * TABLES + self.width)
        return tokens * self.width * states / settings.tensor_parallel + tables


def _host_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
