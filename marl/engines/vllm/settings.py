"""Settings of the engine that samples with vLLM."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from marl.engines.vllm.installation import made_for_processors, problem
from marl.engines.vllm.limits import NO_DORA, check_heads, head_problem
from marl.engines.vllm.memory import engine_uses
from marl.errors import Notice
from marl.models.adapter import Adapter
from marl.models.tiny import Tiny
from marl.protocols import Engine, EngineConfig, ModelConfig, ModelSource
from marl.protocols.memory import MemorySaver, MemoryUse, ModelSize, Workload

if TYPE_CHECKING:
    from marl.engines.vllm.core import Core
    from marl.models.adapter import AdapterSource
    from marl.models.pretrained import PretrainedSource


LEAST_SHARE, LEAST_SEQUENCES, LEAST_PREFILL = 0.3, 16, 2048
"""Less memory for a GPU's cache, or fewer completions or tokens of prompts in a forward, would leave it idle."""


class VLLM(EngineConfig):
    """Continuous batching over a paged, prefix-sharing cache by vLLM; new weights replace the old ones in place."""

    kind: str = "vllm"
    needs_model: ClassVar[bool] = True
    shares_base: ClassVar[bool] = True
    structures: ClassVar[bool] = True
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
    sleep: bool = False
    """While learners work, leave the device to them: weights wait in the memory of the processor, and the cache is
    dropped. vLLM can do so on GPUs; on a processor it has no effect."""
    process: bool = False
    """Run in processes of its own: always so with `tensor_parallel` above 1. They start more slowly."""
    timeout_s: PositiveFloat = 600.0
    """Longest time in seconds that processes of its own may take to copy new weights."""

    @model_validator(mode="after")
    def _limits_memory_once(self) -> Self:
        if self.memory_share is not None and self.kv_cache_mib is not None:
            raise ValueError("memory_share and kv_cache_mib both limit the cache; give one of them")
        return self

    @property
    def sleeps(self) -> bool:
        return self.sleep

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterator[MemoryUse]:
        return engine_uses(self, sizes, work, device_bytes)

    def thrift(self) -> Iterator[MemorySaver]:
        if self.max_sequences > LEAST_SEQUENCES:
            yield MemorySaver("max_sequences", max(LEAST_SEQUENCES, self.max_sequences // 2))
        if self.prefill_tokens > LEAST_PREFILL:
            yield MemorySaver("prefill_tokens", max(LEAST_PREFILL, self.prefill_tokens // 2))
        if self.kv_cache_mib is None and (self.memory_share is None or self.memory_share > LEAST_SHARE):
            yield MemorySaver("memory_share", LEAST_SHARE)

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
        self._prepare()
        from marl.engines.vllm.engine import VLLMEngine
        from marl.engines.vllm.whole_weights import WholeWeights

        return VLLMEngine(WholeWeights(cast("PretrainedSource", source), self), source.tokenizer())

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        self._prepare()
        from marl.engines.vllm.adapters import Adapters
        from marl.engines.vllm.engine import VLLMEngine

        adapters = cast("Mapping[str, AdapterSource]", sources)
        return VLLMEngine(Adapters(adapters, self), next(iter(adapters.values())).tokenizer())

    def start(self, source: PretrainedSource, config: Any, context: int, adapters: Mapping[str, Any]) -> Core:
        """Return vLLM with a model. `config`: of the model; `context`: most tokens of a prompt and its completion;
        `adapters`: vLLM's own settings of them."""
        from marl.engines.vllm.core import Core

        check_heads(source, config)
        return Core(source, self, context, adapters)

    def _prepare(self) -> None:
        for message in self.missing():
            raise ValueError(f"engine 'vllm' {message}")
        if self.sleep and made_for_processors():
            message = "engine.sleep: true has no effect on a processor, where vLLM frees no memory"
            warnings.warn(message, Notice, stacklevel=2)
