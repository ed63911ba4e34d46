"""Settings of the engine that samples with Transformers: any causal language model, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, cast

from pydantic import Field

from marl.engines.transformers.memory import BatchLimits, sampling_uses
from marl.models.adapter import AdapterSource
from marl.protocols import Engine, EngineConfig, ModelSource
from marl.protocols.memory_estimates import MemorySaver, MemoryUse, ModelSize, Workload

LEAST_SLOTS, LEAST_PREFILL = 16, 2048
"""Lower limits of suggested settings: fewer rows or prompt tokens would leave a GPU idle."""


class Transformers(EngineConfig):
    """Continuous batching over a key-value cache of slots; each distinct prompt is read once."""

    kind: str = "transformers"
    needs_model: ClassVar[bool] = True
    serves_several_policies: ClassVar[bool] = True
    slots: int = Field(256, ge=1)
    """Number of rows decoded at once."""
    max_context: int | None = Field(None, ge=2)
    """Maximum length of a prompt and its completion together, in tokens. Default: the model's number of positions."""
    prefill_tokens: int = Field(16384, ge=1)
    """Maximum number of prompt tokens in one forward, padding included."""

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterator[MemoryUse]:
        return sampling_uses(BatchLimits(self.slots, self.prefill_tokens, self.max_context), sizes, work)

    def memory_savers(self) -> Iterator[MemorySaver]:
        if self.slots > LEAST_SLOTS:
            yield MemorySaver("slots", max(LEAST_SLOTS, self.slots // 2))
        if self.prefill_tokens > LEAST_PREFILL:
            yield MemorySaver("prefill_tokens", max(LEAST_PREFILL, self.prefill_tokens // 2))

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.transformers.engine import TransformersEngine
        from marl.engines.transformers.policy_weights import FullWeights

        source = self.expect_model(source)
        return TransformersEngine(FullWeights(source.model(), source), source.tokenizer(), self)

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        from marl.engines.transformers.engine import TransformersEngine
        from marl.engines.transformers.multi_lora import MultiLora

        adapters = cast("Mapping[str, AdapterSource]", sources)
        return TransformersEngine(MultiLora(adapters), next(iter(adapters.values())).tokenizer(), self)
