"""Memory that learners take, worked out from sizes: activations of Llama's and Qwen3's layers, and the output's tables.

What a layer keeps for its backward pass is that of Transformers' modules with PyTorch's fused attention: inputs and
outputs of products in the type of the weights, and each norm's input in float32 (marl/models/half_precision.py); of a
norm that learns, also what it multiplies with its weight; of an adapter, the products of low rank.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from marl.protocols.memory_estimates import FLOAT32_BYTES, MemoryUse, ModelSize, Workload

MAX_LOGIT_ENTRIES = 1 << 24
"""Numbers in a table of tokens by vocabulary that is held at once (`trainers.forward.token_outputs`)."""
FORWARD_LOGIT_TABLES = 4.0
"""Float32 tables of that size that exist at once where entropy is computed: log-softmax, probabilities, finite
logarithms of these, and products."""
BACKWARD_LOGIT_TABLES = 3.0
"""Float32 tables that exist at once in the backward pass: log-softmax, its gradient, and the logits'."""
ANCHOR_LOGIT_TABLES = 4.0
"""Further ones for an exact KL to one anchor."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens of the largest forward pass of an update."""

    tokens: float
    completion_tokens: float
    """Tokens of completions among them, of which outputs are computed."""
    count: float
    """Passes of an optimizer step."""


def micro_batch(work: Workload, micro_tokens: int, packing: str, minibatches: int) -> MicroBatch:
    """Return the largest micro-batch; unless each text is padded alone, what texts share is computed once."""
    rows, width = max(1.0, work.completions / minibatches), max(1, work.max_sequence_tokens)
    if packing in ("padded", "packed"):
        total, most = rows * width, max(1, micro_tokens // width) * width
    else:
        prompts = min(rows, max(1.0, work.distinct_prompts / minibatches))
        apart = prompts * (work.max_prompt_tokens - work.shared_prefix_tokens) + rows * work.max_completion_tokens
        total, most = work.shared_prefix_tokens + apart, max(width, micro_tokens)
    total = max(1.0, total)  # a role that never spoke has no texts
    tokens = min(total, most)
    return MicroBatch(tokens, tokens * rows * work.max_completion_tokens / total, math.ceil(total / tokens))


def layer_activation_bytes(size: ModelSize, *, shares_keys: bool = True) -> float:
    """Return the bytes that one layer keeps of each token for its backward pass.

    `shares_keys`: groups of heads share keys and values in attention; with a mask they are repeated for each head.
    """
    width, learns = size.weight_bytes, size.adapter is None
    keys = size.key_size if shares_keys else size.query_size
    norms = 2 * size.hidden_size * (FLOAT32_BYTES * (1 + learns) + width)
    if size.has_qk_norm:
        norms += (size.query_size + size.key_size) * (FLOAT32_BYTES + width * learns)
    attended = width * (2 * size.query_size + 2 * keys) + FLOAT32_BYTES * size.heads
    adapted = width * size.adapter.rank * size.adapter.layers / size.layers if size.adapter else 0
    return norms + attended + 4 * width * size.intermediate_size + adapted


def activation_bytes(size: ModelSize, tokens: float, *, checkpointing: bool, packing: str = "padded") -> float:
    """Return the bytes kept of so many tokens for the backward pass; of `auto`, in the layout that keeps most."""
    each = layer_activation_bytes(size, shares_keys=packing == "padded")
    return tokens * (size.layers * FLOAT32_BYTES * size.hidden_size + each if checkpointing else size.layers * each)


def transient_bytes(size: ModelSize, micro: MicroBatch, tables: float = FORWARD_LOGIT_TABLES) -> float:
    """Return the bytes that come and go while all activations are kept: tables of tokens by vocabulary in the forward
    pass, or in the backward pass these or gradients within a layer, with that of the output's weights if they learn."""
    table = FLOAT32_BYTES * min(micro.completion_tokens * size.vocabulary, MAX_LOGIT_ENTRIES)
    in_layer = micro.tokens * (4 * size.weight_bytes * size.intermediate_size + 4 * FLOAT32_BYTES * size.hidden_size)
    output = 0 if size.adapter else size.weight_bytes * size.vocabulary * size.hidden_size
    return max(tables * table, max(BACKWARD_LOGIT_TABLES * table, in_layer) + output)


def trained_weights_memory(size: ModelSize, optimizer: str, prefix: str = "") -> Iterator[MemoryUse]:
    """Yield the memory of trained weights: weights, moments, gradients, saved copies, float32 masters of halves.

    Moments in 8 bits have a scale for each block of 256. Paged ones can leave the GPU, and are counted as if they did.
    """
    number, halves = size.trained, size.trained_bytes < FLOAT32_BYTES
    copies = FLOAT32_BYTES * number if halves else 0
    moments = {"adamw": 8.0, "adamw_8bit": 2 + 8 / 256}.get(optimizer, 0.0) * number
    weights = size.trained_bytes * number
    yield MemoryUse(f"{prefix}weights that learn", weights)
    if copies:
        yield MemoryUse(f"{prefix}float32 masters", copies)
    if moments:
        yield MemoryUse(f"{prefix}optimizer", moments)
    yield MemoryUse(f"{prefix}gradients", FLOAT32_BYTES * number, "learn")
    yield MemoryUse(f"{prefix}copies to save", 2 * (weights + copies + moments), "save")


def anchor_memory(size: ModelSize, frozen: Mapping[str, bool]) -> Iterator[MemoryUse]:
    """Yield the copies of weights kept for anchors: one for all `frozen` anchors together, and one for every other.

    Those of an adapter hold its numbers alone, and its initial state is its base, of which there is no copy.
    """
    copy = size.trained_bytes * size.trained
    names = {name: "frozen" if still else name for name, still in frozen.items()}
    for shared in dict.fromkeys(names.values()):
        if not (shared == "frozen" and size.adapter):
            users = ", ".join(name for name, of in names.items() if of == shared)
            yield MemoryUse(f"copy for {users}", copy)
            yield MemoryUse(f"copies to save of {users}", 2 * copy, "save")


def second_model_memory(
    policy_uses: Iterable[MemoryUse], size: ModelSize, optimizer: str, prefix: str
) -> Iterator[MemoryUse]:
    """Yield the memory of a model of the policy's size that learns beside the policy, such as a critic.

    Its activations are as large as those among `policy_uses`, the uses of one pass of the policy.
    """
    yield from trained_weights_memory(size, optimizer, prefix)
    for use in policy_uses:
        if use.content == "activations":
            yield replace(use, content=f"{prefix}{use.content}")
