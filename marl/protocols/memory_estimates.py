"""Data types of memory estimates: sizes of a model, amounts of work, and memory uses by stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Stage = Literal["always", "awake", "play", "learn", "save"]
"""Stage of a training step in which memory is in use. `always`: from the first update to the end of the run. `awake`:
while an engine that can sleep is awake; in the stage `play` all such engines are awake."""
FLOAT32_BYTES = 4
"""Size of a float32 number in bytes."""


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """Sizes of an adapter. Its weights are float32 in every base."""

    parameters: int
    rank: int
    layers: int
    """Number of adapted layers."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a transformer from which its memory use is estimated."""

    parameters: int
    """Number of parameters, without those of an adapter."""
    weight_bytes: int
    """Size of one parameter in bytes."""
    layers: int
    hidden_size: int
    intermediate_size: int
    """Width of the MLP's hidden layer."""
    heads: int
    query_size: int
    """Size of one token's queries, summed over the heads of a layer."""
    key_size: int
    """Size of one token's keys in a layer. Values have the same size."""
    vocabulary: int
    has_qk_norm: bool = False
    """True if queries and keys are normalised, as in Qwen3."""
    adapter: AdapterSize | None = None
    """Adapter that is trained instead of the parameters, or None."""

    @property
    def trained(self) -> int:
        """Number of trained parameters."""
        return self.adapter.parameters if self.adapter else self.parameters

    @property
    def trained_bytes(self) -> int:
        """Size of one trained parameter in bytes."""
        return FLOAT32_BYTES if self.adapter else self.weight_bytes

    @property
    def kv_cache_bytes(self) -> int:
        """Size of one token's keys and values in all layers, in bytes."""
        return 2 * self.layers * self.key_size * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """Number and length of the texts that one engine samples in a step, or that one learner trains on."""

    completions: float
    """Expected number of completions."""
    distinct_prompts: float
    """Expected number of distinct prompts."""
    max_prompt_tokens: int
    """Length of the longest prompt (tokens)."""
    max_completion_tokens: int
    """Maximum length of a completion (tokens)."""
    shared_prefix_tokens: int = 0
    """Estimated length of the common prefix of all prompts (tokens)."""

    @property
    def max_sequence_tokens(self) -> int:
        """Maximum length of prompt and completion together (tokens)."""
        return self.max_prompt_tokens + self.max_completion_tokens

    @classmethod
    def combined(cls, loads: Iterable[Workload]) -> Workload:
        """Return one workload with the texts of all `loads`."""
        loads = [*loads, cls(0, 0, 0, 0)]
        return cls(
            sum(load.completions for load in loads),
            sum(load.distinct_prompts for load in loads),
            max(load.max_prompt_tokens for load in loads),
            max(load.max_completion_tokens for load in loads),
            min((load.shared_prefix_tokens for load in loads if load.completions), default=0),
        )


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Number of bytes in use for one purpose during one stage."""

    content: str
    """Name of the stored data in memory reports."""
    bytes: float
    stage: Stage = "always"
    is_shared_base: bool = False
    """True if engines and learners of this process share one copy of the base model."""


@dataclass(frozen=True, slots=True)
class MemorySaver:
    """Alternative value of a setting that reduces memory use."""

    field: str
    """Path of the setting below its plug-in's settings, such as `gradient_checkpointing` or `critic.where`."""
    value: Any
    keeps_results: bool = True
    """True if the alternative changes speed but no result."""


def base_uses(size: ModelSize) -> tuple[MemoryUse, ...]:
    """Return the memory use of an adapter's base model; () if all weights are trained."""
    return (MemoryUse("base", size.parameters * size.weight_bytes, is_shared_base=True),) if size.adapter else ()


def adamw_uses(size: ModelSize) -> tuple[MemoryUse, ...]:
    """Return the memory uses of training with AdamW: weights, gradients and two moments.

    Half-precision weights have a float32 master copy and float32 gradients, too.
    """
    has_masters = size.trained_bytes < FLOAT32_BYTES
    masters = (MemoryUse("float32 masters", FLOAT32_BYTES * size.trained),) if has_masters else ()
    return (
        *base_uses(size),
        MemoryUse("weights that learn", size.trained_bytes * size.trained),
        *masters,
        MemoryUse("optimizer", 2 * FLOAT32_BYTES * size.trained),
        MemoryUse("gradients", FLOAT32_BYTES * size.trained, "learn"),
    )
