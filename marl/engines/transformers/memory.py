"""Memory that sampling takes, worked out from sizes. Light: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from marl.protocols.memory import FLOAT32, MemoryUse, ModelSize, Workload, base_uses

if TYPE_CHECKING:
    from marl.engines.transformers.settings import Transformers

FIRST_CAPACITY = 64
"""Tokens of a slot of the cache before it grows by doubling."""
LOGITS_AT_ONCE = 1 << 26
"""Most elements of logits in one forward (256 MiB in float32)."""
TABLES = 4.0
"""Float32 tables of rows by vocabulary that drawing tokens takes: logits, log-probabilities, probabilities, their
sums."""


def sampling_uses(settings: Transformers, sizes: Sequence[ModelSize], work: Workload) -> Iterator[MemoryUse]:
    """Yield what an engine takes for policies of these sizes, which share all weights or have adapters on one base."""
    size, rows = sizes[0], min(settings.slots, work.rows)
    if size.adapter is None:
        yield MemoryUse("weights to sample with", size.weight_bytes * size.weights)
    else:
        yield from base_uses(size)
        yield MemoryUse(
            "adapters to sample with", sum(size.weight_bytes * s.adapter.weights for s in sizes if s.adapter)
        )
    yield MemoryUse("keys and values", rows * capacity(work, settings.max_context) * size.cache_bytes)
    yield MemoryUse("decoding or reading prompts", max(_decoding(size, rows), _reading(settings, size, work)), "play")


def capacity(work: Workload, context: int | None) -> int:
    """Return the tokens for which each slot has room at the end: the cache doubles when a row outgrows it."""
    longest = work.width if context is None else min(work.width, context)
    held = FIRST_CAPACITY
    for length in (min(work.prompt, longest), longest):  # a prompt is written at once, an answer token by token
        while held < length:
            held = max(2 * held, work.prompt)
    return held


def _decoding(size: ModelSize, rows: float) -> float:
    first_logits = size.weight_bytes * rows * size.vocabulary
    return rows * size.vocabulary * (size.weight_bytes + FLOAT32 * TABLES) + first_logits


def _reading(settings: Transformers, size: ModelSize, work: Workload) -> float:
    """Return what one forward over prompts takes: their keys and values, one layer's states, and first logits."""
    prompts = min(work.prompts, settings.slots, max(1, settings.prefill_tokens // max(1, work.prompt)))
    states = size.weight_bytes * (3 * size.inner + 2 * size.queries) + FLOAT32 * 3 * size.hidden
    logits = min(prompts * size.vocabulary, LOGITS_AT_ONCE) * size.weight_bytes
    return prompts * work.prompt * (size.cache_bytes + states) + 2 * logits
