"""Data types of memory estimates: sizes of models, sizes of texts, and memory uses by stage of a training step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Stage = Literal["always", "awake", "play", "learn", "save"]
"""Stage of a training step in which memory is in use. `always`: from the first update to the end of the run. `awake`:
while an engine that can sleep is awake. In stage `play` all engines are awake."""
FLOAT32_BYTES = 4
"""Size of a float32 number in bytes."""


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """Sizes of an adapter, whose weights are float32 on every base model."""

    parameters: int
    """Number of the adapter's parameters."""
    rank: int
    """Rank of the adapter's matrices."""
    layers: int
    """Number of layers with an adapter."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a transformer from which its memory use is estimated."""

    parameters: int
    """Number of parameters of the model without adapter."""
    weight_bytes: int
    """Size of one parameter in bytes."""
    layers: int
    """Number of transformer layers."""
    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Width of the MLP's hidden layer."""
    heads: int
    """Number of attention heads in a layer."""
    query_size: int
    """Number of elements in one token's queries, summed over the heads of a layer."""
    key_size: int
    """Number of elements in one token's keys in a layer. Values have the same number."""
    vocabulary: int
    """Number of tokens in the vocabulary."""
    has_qk_norm: bool = False
    """True if queries and keys are normalised, as in Qwen3."""
    adapter: AdapterSize | None = None
    """Sizes of the adapter that is trained instead of the model's parameters, or None."""

    @property
    def trained_parameter_count(self) -> int:
        """Return the number of trained parameters."""
        return self.adapter.parameters if self.adapter else self.parameters

    @property
    def bytes_per_trained_parameter(self) -> int:
        """Return the size of one trained parameter in bytes."""
        return FLOAT32_BYTES if self.adapter else self.weight_bytes

    @property
    def kv_cache_bytes_per_token(self) -> int:
        """Return the size in bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.key_size * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """Number and lengths of the texts in a training step that one engine samples, or that one learner trains on."""

    completions: float
    """Expected number of completions in a training step."""
    distinct_prompts: float
    """Expected number of distinct prompts in a training step."""
    max_prompt_tokens: int
    """Length of the longest prompt (tokens)."""
    max_completion_tokens: int
    """Maximum length of a completion (tokens)."""
    shared_prefix_tokens: int = 0
    """Estimated length of the common prefix of all prompts (tokens)."""

    @property
    def max_sequence_tokens(self) -> int:
        """Return the maximum length of a prompt with its completion (tokens)."""
        return self.max_prompt_tokens + self.max_completion_tokens

    @classmethod
    def combined(cls, workloads: Iterable[Workload]) -> Workload:
        """Return one workload with the texts of all `workloads`."""
        completions, prompts, longest_prompt, longest_completion = 0.0, 0.0, 0, 0
        prefixes: list[int] = []
        for load in workloads:
            completions += load.completions
            prompts += load.distinct_prompts
            longest_prompt = max(longest_prompt, load.max_prompt_tokens)
            longest_completion = max(longest_completion, load.max_completion_tokens)
            if load.completions:
                prefixes.append(load.shared_prefix_tokens)
        return cls(completions, prompts, longest_prompt, longest_completion, min(prefixes, default=0))


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in use for one purpose, such as weights or gradients, during one stage of a training step."""

    content: str
    """Name of the stored data in memory reports, such as `optimizer`."""
    bytes: float
    """Size of the stored data in bytes."""
    stage: Stage = "always"
    is_shared_base: bool = False
    """True if engines and learners of this process share one copy of the base model."""


@dataclass(frozen=True, slots=True)
class MemorySavingSetting:
    """Alternative value of a setting, which reduces memory use."""

    field: str
    """Dotted path of the setting in its plug-in's settings, such as `gradient_checkpointing` or `critic.where`."""
    value: Any
    """Alternative value of the setting."""
    keeps_results: bool = True
    """True if the alternative value changes the speed of a run but not its results."""


def adapter_base_memory_uses(size: ModelSize) -> tuple[MemoryUse, ...]:
    """Return the memory use of an adapter's base model; () if all weights are trained."""
    return (MemoryUse("base", size.parameters * size.weight_bytes, is_shared_base=True),) if size.adapter else ()


def adamw_memory_uses(size: ModelSize) -> tuple[MemoryUse, ...]:
    """Return the memory uses of training with AdamW: weights, gradients and two moments.

    Half-precision weights have a float32 master copy and float32 gradients, too.
    """
    has_masters = size.bytes_per_trained_parameter < FLOAT32_BYTES
    masters = (MemoryUse("float32 masters", FLOAT32_BYTES * size.trained_parameter_count),) if has_masters else ()
    return (
        *adapter_base_memory_uses(size),
        MemoryUse("weights that learn", size.bytes_per_trained_parameter * size.trained_parameter_count),
        *masters,
        MemoryUse("optimizer", 2 * FLOAT32_BYTES * size.trained_parameter_count),
        MemoryUse("gradients", FLOAT32_BYTES * size.trained_parameter_count, "learn"),
    )
