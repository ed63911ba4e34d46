"""Settings of the engine that samples with vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self, cast

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from marl.engines.vllm.installation import made_for_processors, problem
from marl.engines.vllm.limits import NO_DORA, head_problem
from marl.models.adapter import Adapter
from marl.models.tiny import Tiny
from marl.protocols import Engine, EngineConfig, ModelConfig, ModelSource

if TYPE_CHECKING:
    from marl.models.adapter import AdapterSource
    from marl.models.pretrained import PretrainedSource


class VLLM(EngineConfig):
    """Continuous batching over a paged, prefix-sharing cache by vLLM; new weights replace the old ones in place."""

    kind: str = "vllm"
    needs_model: ClassVar[bool] = True
    shares_base: ClassVar[bool] = True
    memory_share: float | None = Field(None, gt=0, le=1)
    """Share of the device's memory that it may use, weights included. Default on a GPU: 0.5."""
    kv_cache_mib: PositiveInt | None = None
    """Memory of the cache of keys and values in MiB, instead of a share of all. Default on a processor: 256."""
    max_context: int | None = Field(None, ge=2)
    """Longest prompt and completion together, in tokens. Default: what the model was made for."""
    max_sequences: PositiveInt = 256
    """Most completions that are sampled at once."""
    prefill_tokens: PositiveInt = 8192
    """Most tokens that one forward reads. On a processor, where prompts are read whole, at least `max_context`."""
    block_size: PositiveInt | None = None
    """Tokens of a block of the cache: what prompts share is shared in whole blocks. Default on a processor, where it
    must be a multiple of 32: 32."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of weights and cache. Default: as the model's."""
    eager: bool | None = None
    """Run the model without compiling it. Default: on a processor, where compiling takes longer than it saves."""
    tensor_parallel: PositiveInt = 1
    """Devices among which each layer is divided."""
    max_adapters: PositiveInt | None = None
    """Most adapters that it holds at once, where it serves policies with adapters. Default: two more than there are at
    the start of a run, for opponents that are added."""
    process: bool = False
    """Run in processes of its own: always so with `tensor_parallel` above 1. They start more slowly."""
    timeout_s: PositiveFloat = 600.0
    """Longest time in seconds that processes of its own may take to copy new weights."""

    @model_validator(mode="after")
    def _limits_memory_once(self) -> Self:
        if self.memory_share is not None and self.kv_cache_mib is not None:
            raise ValueError("memory_share and kv_cache_mib both limit the cache; give one of them")
        return self

    def missing(self) -> Iterable[str]:
        if message := problem():
            yield message

    def unfit(self, model: ModelConfig) -> Iterable[str]:
        base = model.shared() or model
        if isinstance(model, Adapter) and model.use_dora:
            yield NO_DORA
        if isinstance(base, Tiny) and made_for_processors():
            message = head_problem(base.head_dim or base.hidden // base.heads)
            yield from [message] if message else []

    def build(self, source: ModelSource | None) -> Engine:
        if source is None:
            raise ValueError("engine 'vllm' speaks for a model: give the policy a `model`")
        self._check_installation()
        from marl.engines.vllm.engine import VLLMEngine
        from marl.engines.vllm.whole_weights import WholeWeights

        return VLLMEngine(WholeWeights(cast("PretrainedSource", source), self), source.tokenizer())

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        self._check_installation()
        from marl.engines.vllm.adapters import Adapters
        from marl.engines.vllm.engine import VLLMEngine

        adapters = cast("Mapping[str, AdapterSource]", sources)
        return VLLMEngine(Adapters(adapters, self), next(iter(adapters.values())).tokenizer())

    def _check_installation(self) -> None:
        for message in self.missing():
            raise ValueError(f"engine 'vllm' {message}")
