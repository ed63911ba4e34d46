"""Estimates of the memory for sampling with Transformers. Light: nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from marl.protocols.memory_estimates import FLOAT32_BYTES, MemoryUse, ModelSize, Workload, base_uses

FIRST_CAPACITY = 64
"""Initial capacity of each slot of the cache in tokens, before it doubles."""
LOGITS_AT_ONCE = 1 << 26
"""Maximum number of logits in one forward (256 MiB in float32)."""
LOGIT_COPIES = 4.0
"""Float32 tables [rows, vocabulary] while tokens are drawn: logits, log-probabilities, probabilities, their sums."""


class BatchLimits(NamedTuple):
    """Limits of one forward and of the cache, as in the settings of the engine."""

    slots: int
    prefill_tokens: int
    max_context: int | None


def sampling_uses(limits: BatchLimits, sizes: Sequence[ModelSize], work: Workload) -> Iterator[MemoryUse]:
    """Yield the memory uses of one engine for policies of these sizes.

    The policies share all weights, or have adapters on one base.
    """
    size, rows = sizes[0], min(limits.slots, work.completions)
    if size.adapter is None:
        yield MemoryUse("weights to sample with", size.weight_bytes * size.parameters)
    else:
        yield from base_uses(size)
        adapters = sum(size.weight_bytes * other.adapter.parameters for other in sizes if other.adapter)
        yield MemoryUse("adapters to sample with", adapters)
    yield MemoryUse("keys and values", rows * capacity(work, limits.max_context) * size.kv_cache_bytes)
    first_logits = size.weight_bytes * rows * size.vocabulary
    decoding = rows * size.vocabulary * (size.weight_bytes + FLOAT32_BYTES * LOGIT_COPIES) + first_logits
    # Prompts are read before tokens are drawn, so the larger of the two counts.
    yield MemoryUse("decoding or reading prompts", max(decoding, _reading(limits, size, work)), "play")


def capacity(work: Workload, context: int | None) -> int:
    """Return the final capacity of each slot in tokens. The cache doubles whenever a row outgrows it."""
    longest = work.max_sequence_tokens if context is None else min(work.max_sequence_tokens, context)
    tokens = FIRST_CAPACITY
    # A prompt is written at once, an answer token by token.
    for length in (min(work.max_prompt_tokens, longest), longest):
        while tokens < length:
            tokens = max(2 * tokens, work.max_prompt_tokens)
    return tokens


def _reading(limits: BatchLimits, size: ModelSize, work: Workload) -> float:
    """Return the bytes of one forward over prompts: keys and values, the states of one layer, and first logits."""
    prompts_at_once = max(1, limits.prefill_tokens // max(1, work.max_prompt_tokens))
    prompts = min(work.distinct_prompts, limits.slots, prompts_at_once)
    states = size.weight_bytes * (3 * size.intermediate_size + 2 * size.query_size)
    states += FLOAT32_BYTES * 3 * size.hidden_size
    logits = min(prompts * size.vocabulary, LOGITS_AT_ONCE) * size.weight_bytes
    return prompts * work.max_prompt_tokens * (size.kv_cache_bytes + states) + 2 * logits
