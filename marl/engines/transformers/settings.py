"""Settings of the engine that samples with Transformers: any causal language model, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import Field

from marl.engines.transformers.memory import sampling_uses
from marl.protocols import Engine, EngineConfig, ModelSource
from marl.protocols.memory import MemorySaver, MemoryUse, ModelSize, Workload

if TYPE_CHECKING:
    from marl.models.adapter import AdapterSource

LEAST_SLOTS, LEAST_PREFILL = 16, 2048
"""Fewer rows, or tokens of prompts, would leave a GPU idle."""


class Transformers(EngineConfig):
    """Continuous batching over a key-value cache of slots; each distinct prompt is read once."""

    kind: str = "transformers"
    needs_model: ClassVar[bool] = True
    shares_base: ClassVar[bool] = True
    slots: int = Field(256, ge=1)
    """Rows decoded at once."""
    max_context: int | None = Field(None, ge=2)
    """Longest prompt and completion together, in tokens. Default: what the model was made for."""
    prefill_tokens: int = Field(16384, ge=1)
    """Prompt tokens, padding included, that one forward may read."""

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterator[MemoryUse]:
        return sampling_uses(self, sizes, work)

    def thrift(self) -> Iterator[MemorySaver]:
        if self.slots > LEAST_SLOTS:
            yield MemorySaver("slots", max(LEAST_SLOTS, self.slots // 2))
        if self.prefill_tokens > LEAST_PREFILL:
            yield MemorySaver("prefill_tokens", max(LEAST_PREFILL, self.prefill_tokens // 2))

    def build(self, source: ModelSource | None) -> Engine:
        from marl.engines.transformers.policy_weights import SinglePolicy
        from marl.engines.transformers.sampler import Sampler

        if source is None:
            raise ValueError("engine 'transformers' speaks for a model: give the policy a `model`")
        return Sampler(SinglePolicy(source.model(), source), source.tokenizer(), self)

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        from marl.engines.transformers.multi_lora import MultiLora
        from marl.engines.transformers.sampler import Sampler

        adapters = cast("Mapping[str, AdapterSource]", sources)
        return Sampler(MultiLora(adapters), next(iter(adapters.values())).tokenizer(), self)
