"""Memory that learners take, worked out from sizes: activations of Llama's and Qwen3's layers, and the output's tables.

What a layer keeps for its backward pass is that of Transformers' modules with PyTorch's fused attention: inputs and
outputs of products in the type of the weights, and each norm's input in float32 (marl/models/half_precision.py); of a
norm that learns, also what it multiplies with its weight; of an adapter, the products of low rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marl.protocols.memory import FLOAT32, MemoryUse, ModelSize, Workload

if TYPE_CHECKING:
    from trainers.settings.optimisation import Optimisation

AT_ONCE = 1 << 24
"""Numbers in a table of tokens by vocabulary that is held at once (`trainers.forward.token_outputs`)."""
TABLES = 4.0
"""Float32 tables of that size that exist at once where entropy is computed: log-softmax, probabilities, finite
logarithms of these, and products."""
BACKWARD_TABLES = 3.0
"""Float32 tables that exist at once in the backward pass: log-softmax, its gradient, and the logits'."""
ANCHOR_TABLES = 4.0
"""Further ones for an exact KL to one anchor."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens of the largest forward pass of an update."""

    tokens: float
    answers: float
    """Tokens of completions among them, of which outputs are computed."""
    passes: float
    """Passes of an optimizer step."""


def micro_batch(work: Workload, micro_tokens: int, packing: str, minibatches: int) -> MicroBatch:
    """Return the largest micro-batch; unless each text is padded alone, what texts share is computed once."""
    rows, width = max(1.0, work.rows / minibatches), max(1, work.width)
    if packing in ("padded", "packed"):
        total, most = rows * width, max(1, micro_tokens // width) * width
    else:
        prompts = min(rows, max(1.0, work.prompts / minibatches))
        apart = prompts * (work.prompt - work.common) + rows * work.answer
        total, most = work.common + apart, max(width, micro_tokens)
    total = max(1.0, total)  # a role that never spoke has no texts
    tokens = min(total, most)
    return MicroBatch(tokens, tokens * rows * work.answer / total, math.ceil(total / tokens))


def kept_by_layer(size: ModelSize, *, shares_keys: bool = True) -> float:
    """Return the bytes that one layer keeps of each token for its backward pass.

    `shares_keys`: groups of heads share keys and values in attention; with a mask they are repeated for each head.
    """
    width, learns = size.weight_bytes, size.adapter is None
    keys = size.keys if shares_keys else size.queries
    norms = 2 * size.hidden * (FLOAT32 * (1 + learns) + width)
    if size.head_norms:
        norms += (size.queries + size.keys) * (FLOAT32 + width * learns)
    attended = width * (2 * size.queries + 2 * keys) + FLOAT32 * size.heads
    adapted = width * size.adapter.rank * size.adapter.layers / size.layers if size.adapter else 0
    return norms + attended + 4 * width * size.inner + adapted


def activations(size: ModelSize, tokens: float, *, checkpointing: bool, packing: str = "padded") -> float:
    """Return the bytes kept of so many tokens for the backward pass; of `auto`, in the layout that keeps most."""
    each = kept_by_layer(size, shares_keys=packing == "padded")
    return tokens * (size.layers * FLOAT32 * size.hidden + each if checkpointing else size.layers * each)


def beside_activations(size: ModelSize, micro: MicroBatch, tables: float = TABLES) -> float:
    """Return the bytes that come and go while all activations are kept: tables of tokens by vocabulary in the forward
    pass, or in the backward pass these or gradients within a layer, with that of the output's weights if they learn."""
    table = FLOAT32 * min(micro.answers * size.vocabulary, AT_ONCE)
    in_layer = micro.tokens * (4 * size.weight_bytes * size.inner + 4 * FLOAT32 * size.hidden)
    output = 0 if size.adapter else size.weight_bytes * size.vocabulary * size.hidden
    return max(tables * table, max(BACKWARD_TABLES * table, in_layer) + output)


def trained_uses(size: ModelSize, optimizer: str, prefix: str = "") -> Iterator[MemoryUse]:
    """Yield what weights that learn take: themselves, masters of those in halves, moments, gradients, checkpoints.

    Moments in 8 bits have a scale for each block of 256. Paged ones can leave the GPU, and are counted as if they did.
    """
    number, halves = size.trained, size.trained_bytes < FLOAT32
    copies = FLOAT32 * number if halves else 0
    moments = {"adamw": 8.0, "adamw_8bit": 2 + 8 / 256}.get(optimizer, 0.0) * number
    weights = size.trained_bytes * number
    yield MemoryUse(f"{prefix}weights that learn", weights)
    if copies:
        yield MemoryUse(f"{prefix}float32 masters", copies)
    if moments:
        yield MemoryUse(f"{prefix}optimizer", moments)
    yield MemoryUse(f"{prefix}gradients", FLOAT32 * number, "learn")
    yield MemoryUse(f"{prefix}copies to save", 2 * (weights + copies + moments), "save")


def anchor_uses(size: ModelSize, frozen: Mapping[str, bool]) -> Iterator[MemoryUse]:
    """Yield the copies that anchors are: one of the initial weights for all that are `frozen`, else one each.

    Those of an adapter hold its numbers alone, and its initial state is its base, of which there is no copy.
    """
    copy = size.trained_bytes * size.trained
    names = {name: "frozen" if still else name for name, still in frozen.items()}
    for shared in dict.fromkeys(names.values()):
        if not (shared == "frozen" and size.adapter):
            users = ", ".join(name for name, of in names.items() if of == shared)
            yield MemoryUse(f"copy for {users}", copy)
            yield MemoryUse(f"copies to save of {users}", 2 * copy, "save")


def second_model_uses(settings: Optimisation, size: ModelSize, work: Workload, whose: str) -> Iterator[MemoryUse]:
    """Yield what a model takes that learns beside the policy and is of its size, such as a critic."""
    yield from trained_uses(size, settings.optimizer, whose)
    for use in settings.passing(size, work):
        if use.content == "activations":
            yield replace(use, content=f"{whose}{use.content}")
