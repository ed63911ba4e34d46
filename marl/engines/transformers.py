"""Settings of the engine that samples with Transformers: any causal language model, on a CPU or a GPU."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from marl.protocols import Engine, EngineConfig, Source


class Transformers(EngineConfig):
    """Continuous batching over a key-value cache of slots; each distinct prompt is read once."""

    kind: str = "transformers"
    speaks_for_models: ClassVar[bool] = True
    slots: int = Field(256, ge=1)
    """Rows decoded at once."""
    max_context: int | None = Field(None, ge=2)
    """Longest prompt and completion together, in tokens. Default: what the model was made for."""
    prefill_tokens: int = Field(16384, ge=1)
    """Prompt tokens, padding included, that one forward may read."""

    def build(self, source: Source | None) -> Engine:
        from marl.engines.sampler import Sampler

        if source is None:
            raise ValueError("engine 'transformers' speaks for a model: give the policy a `model`")
        return Sampler(source.model(), source.tokenizer(), self)
