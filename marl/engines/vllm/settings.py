"""Settings of the engine that samples with vLLM, and estimates of its memory. Light: no vLLM, no torch."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from marl.core.errors import Notice
from marl.engines.vllm.installation import installation_problem, is_cpu_build
from marl.engines.vllm.limits import (
    CPU_CACHE_MIB,
    GPU_SHARE,
    NO_DORA,
    SPARE_ADAPTERS,
    check_heads,
    head_problem,
    supported_rank,
)
from marl.models.adapter import Adapter
from marl.models.pretrained import PretrainedSource
from marl.models.tiny import Tiny
from marl.protocols import Engine, EngineConfig, ModelConfig, ModelSource
from marl.protocols.memory_estimates import FLOAT32_BYTES, MemorySaver, MemoryUse, ModelSize, Workload, base_uses

LEAST_SHARE, LEAST_SEQUENCES, LEAST_PREFILL = 0.3, 16, 2048
"""Lower limits of suggested settings: a smaller cache, or fewer completions or prompt tokens, leave a GPU idle."""
_SHARE, _TOO_SMALL = "vLLM's share of memory", "is less than it must hold: give it a greater memory_share"
_LOGIT_COPIES = 4.0
"""Float32 tables [completions, vocabulary] while tokens are drawn: logits, probabilities, random divisors, and
log-probabilities."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class VLLM(EngineConfig):
    """Continuous batching over a paged, prefix-sharing cache by vLLM; new weights replace the old ones in place."""

    kind: str = "vllm"
    needs_model: ClassVar[bool] = True
    serves_several_policies: ClassVar[bool] = True
    supports_structured: ClassVar[bool] = True
    memory_share: float | None = Field(None, gt=0, le=1)
    """Share of the device's memory for vLLM, weights included. Default on a GPU: 0.5."""
    kv_cache_mib: PositiveInt | None = None
    """Size of the key-value cache in MiB, as an alternative to `memory_share`. Default on a CPU: 256."""
    max_context: int | None = Field(None, ge=2)
    """Maximum length of a prompt and its completion together, in tokens. Default: the model's number of positions."""
    max_sequences: PositiveInt = 256
    """Maximum number of completions sampled at once."""
    prefill_tokens: PositiveInt = 8192
    """Maximum number of tokens in one forward. At least `max_context` on a CPU, where vLLM cannot split a prompt."""
    block_size: PositiveInt | None = None
    """Tokens in a block of the cache. Prompts share whole blocks. A multiple of 32 on a CPU (default there: 32)."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of weights and cache. Default: the model's."""
    eager: bool | None = None
    """Run the model without compiling it. Default: true on a CPU, where compiling takes longer than it saves."""
    tensor_parallel: PositiveInt = 1
    """Number of devices among which each layer is divided."""
    max_adapters: PositiveInt | None = None
    """Maximum number of adapters in memory. Default: two more than at the start of a run, for opponents added later."""
    sleep: bool = False
    """Free the device while learners work: weights move to the host's memory, and the cache is dropped. No effect on a
    CPU."""
    process: bool = False
    """Run vLLM in separate processes, which start more slowly. Always true with `tensor_parallel` above 1."""
    timeout_s: PositiveFloat = 600.0
    """Maximum time of separate processes for copying new weights, in seconds."""

    @model_validator(mode="after")
    def _limits_memory_once(self) -> Self:
        if self.memory_share is not None and self.kv_cache_mib is not None:
            raise ValueError("memory_share and kv_cache_mib both limit the cache; give one of them")
        return self

    @property
    def sleeps(self) -> bool:
        return self.sleep

    def memory(self, sizes: Sequence[ModelSize], work: Workload, device_bytes: float | None) -> Iterator[MemoryUse]:
        """Yield the share of the device, or the sum of all uses if the cache has a fixed size.

        A share smaller than the weights yields infinitely many bytes. `device_bytes`: memory of a GPU, None on a CPU.
        """
        size = sizes[0]
        number_bytes = _BYTES[self.dtype] if self.dtype else size.weight_bytes
        # On a CPU, vLLM keeps a second copy of the output head, packed for products.
        packed = size.vocabulary * size.hidden_size if device_bytes is None else 0
        weights = number_bytes * (size.parameters + packed) / self.tensor_parallel
        adapters = self._adapter_bytes(sizes, number_bytes)
        tokens = min(work.distinct_prompts * work.max_prompt_tokens, max(self.prefill_tokens, self.max_sequences))
        # States of one layer while prompts are read, and tables of rows while tokens are drawn.
        states = 3 * size.hidden_size + max(2 * size.query_size + 2 * size.key_size, 3 * size.intermediate_size)
        rows = min(work.completions, self.max_sequences)
        tables = rows * size.vocabulary * (FLOAT32_BYTES * _LOGIT_COPIES + number_bytes)
        activations = tokens * number_bytes * states / self.tensor_parallel + tables
        yield from base_uses(size)  # adapters are made on a base of Transformers before vLLM is given them
        if self.kv_cache_mib or (device_bytes is None and self.memory_share is None):
            yield MemoryUse("weights in vLLM", weights)
            yield MemoryUse("adapters in vLLM", adapters)
            yield MemoryUse("keys and values", (self.kv_cache_mib or CPU_CACHE_MIB) * 2**20)
            yield MemoryUse("reading prompts or drawing tokens", activations, "play")
            return
        host_bytes = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        share = (self.memory_share or GPU_SHARE) * (device_bytes or host_bytes)
        is_enough = share > weights + adapters + activations
        yield MemoryUse(_SHARE, share) if is_enough else MemoryUse(f"{_SHARE} {_TOO_SMALL}", math.inf)

    def _adapter_bytes(self, sizes: Sequence[ModelSize], number_bytes: int) -> float:
        """Return the bytes of adapters: vLLM's slots, each adapter as loaded, and the float32 tensors of updates."""
        adapters = [size.adapter for size in sizes if size.adapter]
        if not adapters:
            return 0.0
        max_adapters = self.max_adapters or len(adapters) + SPARE_ADAPTERS
        largest = max(adapters, key=lambda adapter: adapter.parameters)
        slot = largest.parameters * supported_rank(largest.rank) / largest.rank
        parameters = sum(adapter.parameters for adapter in adapters)
        # One slot stays empty (see `VLLMAdapters`).
        return number_bytes * ((max_adapters + 1) * slot + parameters) + FLOAT32_BYTES * parameters

    def memory_savers(self) -> Iterator[MemorySaver]:
        if self.max_sequences > LEAST_SEQUENCES:
            yield MemorySaver("max_sequences", max(LEAST_SEQUENCES, self.max_sequences // 2))
        if self.prefill_tokens > LEAST_PREFILL:
            yield MemorySaver("prefill_tokens", max(LEAST_PREFILL, self.prefill_tokens // 2))
        if self.kv_cache_mib is None and (self.memory_share is None or self.memory_share > LEAST_SHARE):
            yield MemorySaver("memory_share", LEAST_SHARE)

    def unmet_requirements(self) -> Iterable[str]:
        if message := installation_problem():
            yield message

    def model_conflicts(self, model: ModelConfig) -> Iterable[str]:
        base = model.shared_base() or model
        if isinstance(model, Adapter) and model.use_dora:
            yield NO_DORA
        if isinstance(base, Tiny) and is_cpu_build():
            message = head_problem(base.head_dim or base.hidden // base.heads)
            if message:
                yield message

    def build(self, source: ModelSource | None) -> Engine:
        source = self.expect_model(source)
        self._prepare()
        # Only after the check: the module imports vLLM.
        from marl.engines.vllm.engine import build_engine

        return build_engine(self, source)

    def build_shared(self, sources: Mapping[str, ModelSource]) -> Engine:
        self._prepare()
        from marl.engines.vllm.engine import build_shared_engine

        return build_shared_engine(self, sources)

    def start(self, source: PretrainedSource, config: Any, context: int, adapters: Mapping[str, Any]) -> Any:
        """Start vLLM with a model and return a `LocalCore`.

        `config`: configuration of the model; `context`: maximum number of tokens of a prompt and its completion;
        `adapters`: vLLM's settings of adapters.
        """
        from marl.engines.vllm.core import LocalCore

        check_heads(source, config)
        return LocalCore(source, self, context, adapters)

    def _prepare(self) -> None:
        """Check the installation, and warn of a setting without effect."""
        for message in self.unmet_requirements():
            raise ValueError(f"engine 'vllm' {message}")
        if self.sleep and is_cpu_build():
            message = "engine.sleep: true has no effect on a processor, where vLLM frees no memory"
            warnings.warn(message, Notice, stacklevel=2)
