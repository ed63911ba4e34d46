"""Estimates of the memory for sampling with Transformers. This module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from marl.protocols.memory_estimates import FLOAT32_BYTES, MemoryUse, ModelSize, Workload, adapter_base_memory_uses

if TYPE_CHECKING:
    # Imported for type checkers only: `settings` imports this module, so a second import would be circular.
    from marl.engines.transformers.settings import Transformers

INITIAL_SLOT_CAPACITY = 64
"""Initial capacity of each slot of the cache in tokens, before it doubles."""
MAX_LOGITS_PER_FORWARD = 1 << 26
"""Maximum number of logits in one forward (256 MiB in float32)."""
LOGIT_COPIES = 4.0
"""Number of float32 tensors [rows, vocabulary] in sampling: logits, log-probabilities, probabilities, sums."""


def power_of_two_at_least(number: float) -> int:
    """Return the least power of two that is at least `number`, which is positive."""
    return 1 << max(0, math.ceil(number) - 1).bit_length()


def sampling_memory_uses(
    settings: Transformers, sizes: Sequence[ModelSize], work: Workload, *, on_gpu: bool
) -> Iterator[MemoryUse]:
    """Yield the memory uses of one engine for policies of these `sizes`, which share all weights or the base model.

    `on_gpu`: the engine is on a GPU, where decoding in a static cache is the default.
    """
    size, rows = sizes[0], min(settings.slots, work.completions)
    is_static = settings.cache == "static" or (settings.cache is None and on_gpu)
    if is_static:
        rows = min(settings.slots, power_of_two_at_least(rows))
    if size.adapter is None:
        yield MemoryUse("weights to sample with", size.weight_bytes * size.parameters)
    else:
        yield from adapter_base_memory_uses(size)
        adapters = sum(size.weight_bytes * other.adapter.parameters for other in sizes if other.adapter)
        yield MemoryUse("adapters to sample with", adapters)
    # `capacity` becomes the number of tokens per slot at the end: the cache doubles when a row outgrows it.
    longest = work.max_sequence_tokens
    if settings.max_context is not None:
        longest = min(longest, settings.max_context)
    capacity = INITIAL_SLOT_CAPACITY
    # The cache grows once for the prompts, and then again while answers are written.
    for length in (min(work.max_prompt_tokens, longest), power_of_two_at_least(longest) if is_static else longest):
        while capacity < length:
            capacity = max(2 * capacity, work.max_prompt_tokens)
    yield MemoryUse("keys and values", rows * capacity * size.kv_cache_bytes_per_token)
    first_logits = size.weight_bytes * rows * size.vocabulary
    decoding = rows * size.vocabulary * (size.weight_bytes + FLOAT32_BYTES * LOGIT_COPIES) + first_logits
    # Reading prompts needs their keys and values, one layer's hidden states, and the logits of the first tokens.
    prompts_at_once = max(1, settings.prefill_tokens // max(1, work.max_prompt_tokens))
    prompts = min(work.distinct_prompts, settings.slots, prompts_at_once)
    states = size.weight_bytes * (3 * size.intermediate_size + 2 * size.query_size)
    states += FLOAT32_BYTES * 3 * size.hidden_size
    logits = min(prompts * size.vocabulary, MAX_LOGITS_PER_FORWARD) * size.weight_bytes
    reading = prompts * work.max_prompt_tokens * (size.kv_cache_bytes_per_token + states) + 2 * logits
    if is_static and on_gpu:
        # CUDA graphs keep the memory of their temporary tensors. This has not been measured on a GPU.
        yield MemoryUse("CUDA graphs of decoding", decoding)
        yield MemoryUse("reading prompts", reading, "play")
    else:
        # Prompts are read before tokens are decoded, so only the larger of the two needs counts.
        yield MemoryUse("decoding or reading prompts", max(decoding, reading), "play")
