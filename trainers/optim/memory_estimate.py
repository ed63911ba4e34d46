"""Estimates of learners' memory from the sizes of models like Llama and Qwen3: weights, activations, logits.

A layer saves for its backward pass what Transformers' modules save with PyTorch's fused attention: inputs and outputs
of matrix products in the weights' dtype, and each norm's input in float32 (marl/models/half_precision.py). A trained
norm also saves its normalised input, and an adapter its low-rank products.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from marl.protocols.memory_estimates import FLOAT32_BYTES, MemoryUse, ModelSize, Workload

MAX_LOGIT_ENTRIES = 1 << 24
"""Maximum number of logits (tokens times vocabulary) in memory at once (`trainers.forward.token_outputs`)."""
FORWARD_LOGIT_TABLES = 4.0
"""Number of float32 tables of logits held at once to compute an entropy: log-softmax, probabilities, clamped
log-probabilities, and products."""
BACKWARD_LOGIT_TABLES = 3.0
"""Number of float32 tables of logits held at once in the backward pass: log-softmax, its gradient, the logits'."""
ANCHOR_LOGIT_TABLES = 4.0
"""Number of further float32 tables of logits for an exact KL to one anchor."""


@dataclass(frozen=True, slots=True)
class MicroBatchSize:
    """Size of the largest forward pass of an update."""

    tokens: float
    completion_tokens: float
    """Number of the completion tokens, for which logits are computed."""
    count: float
    """Number of forward passes of an optimizer step."""


def largest_micro_batch_size(workload: Workload, max_tokens: int, packing: str, minibatch_count: int) -> MicroBatchSize:
    """Return the size of the largest micro-batch. With shared prefixes, a common prefix counts once."""
    rows, width = max(1.0, workload.completions / minibatch_count), max(1, workload.max_sequence_tokens)
    if packing in ("padded", "packed"):
        total, maximum = rows * width, max(1, max_tokens // width) * width
    else:
        prompts = min(rows, max(1.0, workload.distinct_prompts / minibatch_count))
        unshared = (
            prompts * (workload.max_prompt_tokens - workload.shared_prefix_tokens)
            + rows * workload.max_completion_tokens
        )
        total, maximum = workload.shared_prefix_tokens + unshared, max(width, max_tokens)
    total = max(1.0, total)  # a role without turns has 0 tokens, which would divide by zero
    tokens = min(total, maximum)
    return MicroBatchSize(tokens, tokens * rows * workload.max_completion_tokens / total, math.ceil(total / tokens))


def layer_activation_bytes_per_token(size: ModelSize, *, repeats_keys: bool = False) -> float:
    """Return the bytes per token that one transformer layer saves for its backward pass.

    `repeats_keys`: attention with a mask repeats keys and values for each query head, instead of sharing them.
    """
    width, is_trained = size.weight_bytes, size.adapter is None
    keys = size.query_size if repeats_keys else size.key_size
    norms = 2 * size.hidden_size * (FLOAT32_BYTES * (1 + is_trained) + width)
    if size.has_qk_norm:
        norms += (size.query_size + size.key_size) * (FLOAT32_BYTES + width * is_trained)
    attended = width * (2 * size.query_size + 2 * keys) + FLOAT32_BYTES * size.heads
    adapted = width * size.adapter.rank * size.adapter.layers / size.layers if size.adapter else 0
    return norms + attended + 4 * width * size.intermediate_size + adapted


def activation_bytes(size: ModelSize, token_count: float, *, checkpointing: bool, packing: str = "padded") -> float:
    """Return the bytes of activations that all layers save for the backward pass of `token_count` tokens.

    `checkpointing`: a layer saves its input alone, and one layer at a time is recomputed. With packing `auto`, the
    layout that saves most is assumed.
    """
    layer_bytes = layer_activation_bytes_per_token(size, repeats_keys=packing != "padded")
    if checkpointing:
        return token_count * (size.layers * FLOAT32_BYTES * size.hidden_size + layer_bytes)
    return token_count * (size.layers * layer_bytes)


def temporary_tensor_bytes(
    size: ModelSize, micro_batch: MicroBatchSize, logit_table_count: float = FORWARD_LOGIT_TABLES
) -> float:
    """Return the peak bytes of temporary tensors while all activations are saved.

    In the forward pass these are `logit_table_count` tables of logits; in the backward pass, tables of logits or the
    gradients within a layer, and the gradient of trained output weights.
    """
    table = FLOAT32_BYTES * min(micro_batch.completion_tokens * size.vocabulary, MAX_LOGIT_ENTRIES)
    in_layer = micro_batch.tokens * (
        4 * size.weight_bytes * size.intermediate_size + 4 * FLOAT32_BYTES * size.hidden_size
    )
    output = 0 if size.adapter else size.weight_bytes * size.vocabulary * size.hidden_size
    return max(logit_table_count * table, max(BACKWARD_LOGIT_TABLES * table, in_layer) + output)


def trained_weights_memory(size: ModelSize, optimizer: str, name_prefix: str = "") -> Iterator[MemoryUse]:
    """Yield the memory of trained weights: weights, gradients, optimizer moments, float32 masters, checkpoint copies.

    Moments in 8 bits have a scale for each block of 256. Paged moments count as 0, because they can leave the GPU.
    `name_prefix` is the beginning of each name in the memory report, such as `critic's `.
    """
    number, halves = size.trained_parameter_count, size.bytes_per_trained_parameter < FLOAT32_BYTES
    copies = FLOAT32_BYTES * number if halves else 0
    moments = {"adamw": 8.0, "adamw_8bit": 2 + 8 / 256}.get(optimizer, 0.0) * number
    weights = size.bytes_per_trained_parameter * number
    yield MemoryUse(f"{name_prefix}weights that learn", weights)
    if copies:
        yield MemoryUse(f"{name_prefix}float32 masters", copies)
    if moments:
        yield MemoryUse(f"{name_prefix}optimizer", moments)
    yield MemoryUse(f"{name_prefix}gradients", FLOAT32_BYTES * number, "learn")
    yield MemoryUse(f"{name_prefix}copies to save", 2 * (weights + copies + moments), "save")


def anchor_memory(size: ModelSize, is_frozen_by_anchor: Mapping[str, bool]) -> Iterator[MemoryUse]:
    """Yield the memory of the anchors' models; `is_frozen_by_anchor` maps each anchor to True if it keeps the initial
    weights.

    All frozen anchors share one model. A frozen anchor of an adapter is the base model, which needs no copy.
    """
    copy_bytes = size.bytes_per_trained_parameter * size.trained_parameter_count
    users_of_copy: dict[str, list[str]] = {}
    for name, keeps_initial in is_frozen_by_anchor.items():
        users_of_copy.setdefault("frozen" if keeps_initial else name, []).append(name)
    for copied, users in users_of_copy.items():
        if not (copied == "frozen" and size.adapter):
            yield MemoryUse(f"copy for {', '.join(users)}", copy_bytes)
            yield MemoryUse(f"copies to save of {', '.join(users)}", 2 * copy_bytes, "save")


def second_model_memory(
    policy_uses: Iterable[MemoryUse], size: ModelSize, optimizer: str, name_prefix: str
) -> Iterator[MemoryUse]:
    """Yield the memory of a second trained model of the policy's size, such as a critic.

    `policy_uses` is the memory of the policy's forward and backward pass: the second model has equal activations.
    """
    yield from trained_weights_memory(size, optimizer, name_prefix)
    for use in policy_uses:
        if use.content == "activations":
            yield replace(use, content=f"{name_prefix}{use.content}")
