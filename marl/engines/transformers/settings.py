"""Settings of the engine that samples with Transformers: any causal language model, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import Field

from marl.protocols import Engine, EngineConfig, Source

if TYPE_CHECKING:
    from marl.models.adapter import Adapted


class Transformers(EngineConfig):
    """Continuous batching over a key-value cache of slots; each distinct prompt is read once."""

    kind: str = "transformers"
    speaks_for_models: ClassVar[bool] = True
    serves: ClassVar[bool] = True
    slots: int = Field(256, ge=1)
    """Rows decoded at once."""
    max_context: int | None = Field(None, ge=2)
    """Longest prompt and completion together, in tokens. Default: what the model was made for."""
    prefill_tokens: int = Field(16384, ge=1)
    """Prompt tokens, padding included, that one forward may read."""

    def build(self, source: Source | None) -> Engine:
        from marl.engines.transformers.sampler import Sampler

        if source is None:
            raise ValueError("engine 'transformers' speaks for a model: give the policy a `model`")
        return Sampler(source.model(), source.tokenizer(), self)

    def serve(self, sources: Mapping[str, Source]) -> Engine:
        from marl.engines.transformers.multi_lora import MixedLora
        from marl.engines.transformers.sampler import Sampler
        from marl.models.lora import same_tensors

        adapted = cast("Mapping[str, Adapted]", sources)
        one = next(iter(adapted.values()))
        voices = MixedLora(same_tensors(one.base), {policy: source.model() for policy, source in adapted.items()})
        return Sampler(voices.model, one.tokenizer(), self, voices)
