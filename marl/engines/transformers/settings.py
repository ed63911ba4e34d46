"""Settings of the engine that samples with Transformers: any causal language model, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, cast

from pydantic import Field

from marl.engines.transformers.memory import sampling_memory_uses
from marl.models.adapter import AdapterSource
from marl.protocols import CacheAtUpdate, Engine, EngineConfig, ModelSource
from marl.protocols.memory_estimates import MemorySavingSetting, MemoryUse, ModelSize, Workload

LEAST_SLOTS, LEAST_PREFILL = 16, 2048
"""Lower limits of the `slots` and `prefill_tokens` suggested to save memory: smaller values would leave a GPU idle."""


class Transformers(EngineConfig):
    """Continuous batching over a key-value cache of slots; each distinct prompt is read once."""

    kind: str = "transformers"
    needs_model: ClassVar[bool] = True
    serves_several_policies: ClassVar[bool] = True
    slots: int = Field(default=256, ge=1)
    """Maximum number of completions decoded at once."""
    max_context: int | None = Field(default=None, ge=2)
    """Maximum length of a prompt and its completion together, in tokens. Default: the model's number of positions."""
    prefill_tokens: int = Field(default=16384, ge=1)
    """Maximum number of prompt tokens in one forward, padding included."""

    cache: Literal["dynamic", "static"] | None = None
    """How rows are decoded. `static`: in tensors of fixed shapes, padded to powers of two; a GPU replays such steps as
    CUDA graphs. `dynamic`: in tensors as large as the rows. Default: `static` on a GPU for models that can be captured
    as a graph, else `dynamic`. Sampled tokens are equal on a CPU; log-probabilities may differ in their last digits."""
    cache_at_update: CacheAtUpdate = "keep"
    """Keys and values of open completions when new weights arrive: `keep` those that the older weights computed, or
    `recompute` them with the new ones, by one forward over prompt and answer. Recorded log-probabilities are those of
    sampling in both cases."""

    def memory_uses(
        self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None
    ) -> Iterator[MemoryUse]:
        return sampling_memory_uses(self, sizes, work, on_gpu=device_bytes is not None)

    def memory_saving_settings(self) -> Iterator[MemorySavingSetting]:
        if self.slots > LEAST_SLOTS:
            yield MemorySavingSetting("slots", max(LEAST_SLOTS, self.slots // 2))
        if self.prefill_tokens > LEAST_PREFILL:
            yield MemorySavingSetting("prefill_tokens", max(LEAST_PREFILL, self.prefill_tokens // 2))

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.transformers import engine, policy_weights

        source = self.require_model(source)
        return engine.TransformersEngine(policy_weights.FullWeights(source.model(), source), source.tokenizer(), self)

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        from marl.engines.transformers import engine, multi_lora

        adapters = cast("Mapping[str, AdapterSource]", sources)
        return engine.TransformersEngine(
            multi_lora.MultiLoraModel(adapters), next(iter(adapters.values())).tokenizer(), self
        )
